"""What one rank needs of its node's memory, line by line, and whether it fits.

Two sums. What the node must have: weights, KV cache, runtime, load spike and reserve together. And what vLLM
allows itself, `gpu-memory-utilization` of the whole pool: weights, runtime and at least one request must fit
into that, or it gives up after having loaded for half an hour.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sparkd.engine.flags import whole_number
from sparkd.profile.kv import LAYOUT_VARIABLE, KvNeed, kv_beside, kv_need
from sparkd.profile.schema import Profile
from sparkd.records.defaults import GIB
from sparkd.records.plan import MemoryLine
from sparkd.records.report import NodeFacts
from sparkd.records.verdict import Severity, Verdict

_DEFAULT_UTILIZATION: Final = 0.92
"""vLLM's own, when a profile does not say (0.33)."""
_BYTES: Final = "kv-cache-memory-bytes"
_FEWER: Final = (
    f"give {_BYTES} fewer bytes, or leave it out: vLLM does not check it against the memory there is"
)
_GIVEN: Final = f"KV cache, as {_BYTES} says"
_WASTEFUL: Final = 1.5
"""KV pages billed over their content from which it is worth a word: layers of two kinds cost up to 1.15,
an fp8 target beside a bf16 drafter 3.4."""


@dataclass(frozen=True, slots=True)
class _Shortage:
    id: str
    title: str
    remedy: str


_TOO_SMALL: Final = _Shortage(
    "MEMORY_FIT",
    "a rank needs more memory than the node has",
    "choose a layout with more nodes, or a smaller model or context",
)
_TAKEN: Final = _Shortage(
    "MEMORY_AVAILABLE",
    "a rank needs more memory than is available on the node now",
    "end what else runs there, or reboot the node if nothing does",
)


def memory_lines(profile: Profile) -> tuple[MemoryLine, ...]:
    """The summands for one rank, zeros left out. The load spike counts: loading must end well too."""
    memory = profile.memory
    lines = [MemoryLine("weights", round(memory.weights_gib * GIB))]
    kv = kv_need(profile)
    if (given := _given_bytes(profile)) is not None:
        lines.append(MemoryLine(_GIVEN, given))
    elif kv is not None:
        lines.append(MemoryLine(_kv_label(kv, memory.kv.requests), kv.bytes * memory.kv.requests))
    lines += [
        MemoryLine("runtime", round(memory.runtime_gib * GIB)),
        MemoryLine("load spike", round(memory.load_spike_gib * GIB)),
        MemoryLine("reserve for the node", round(memory.reserve_gib * GIB)),
    ]
    return tuple(line for line in lines if line.bytes)


def need_bytes(lines: Sequence[MemoryLine]) -> int:
    return sum(line.bytes for line in lines)


def memory_notes(profile: Profile, members: Sequence[NodeFacts]) -> list[str]:
    """How much room for KV the engine's own share leaves, on the smallest node."""
    kv = kv_need(profile)
    if kv is None:
        if profile.memory.kv.layers:
            return [
                "KV cache not added up: that takes max-model-len, max-num-batched-tokens and a known dtype"
            ]
        return []
    total = min((node.memory_total for node in members if node.memory_total), default=0)
    share = _share(profile)
    if not total or share is None:
        return []
    room = int(share * total) - _held(profile)
    requests = f"{max(room, 0) / kv.bytes:.1f} requests of {kv.length:,} tokens"
    took = f"vLLM takes {share:g} of {_gib(total)}, {_gib(share * total)}"
    notes = [f"{took}: {_gib(room)} of it for KV, room for {requests}"]
    for other in kv_beside(profile):
        holds = f"{_gib(room)} hold {other.tokens(max(room, 0)):,} tokens"
        takes = f"a request of {other.length:,} takes {_gib(other.bytes)}"
        notes.append(f"side by side, KV in {_kv_dtypes(other)}: {holds}; {takes}")
    return notes


def memory_verdicts(
    profile: Profile, members: Sequence[NodeFacts], available: Mapping[str, int]
) -> list[Verdict]:
    """`available` is the measured MemAvailable by node id, of nodes on which nothing of this runs."""
    found: list[Verdict] = []
    for node in members:
        if 0 < node.memory_total < need_bytes(memory_lines(profile)):
            found += _lacks(profile, node, f"has {_gib(node.memory_total)}", node.memory_total, _TOO_SMALL)
        elif node.id in available and not node.local:
            has = available[node.id]
            found += _lacks(profile, node, f"has {_gib(has)} available", has, _TAKEN)
    found += _share_verdicts(profile, members)
    kv = kv_need(profile)
    if kv is not None and kv.bytes > _WASTEFUL * kv.content_bytes:
        found.append(_pages_verdict(kv))
    return found


def _lacks(profile: Profile, node: NodeFacts, says: str, has: int, shortage: _Shortage) -> Iterator[Verdict]:
    """Why a rank does not fit into `has` bytes. Fewer bytes of KV are a remedy only where all else fits."""
    lines = memory_lines(profile)
    given = _given_bytes(profile)
    rest = [line for line in lines if line.label != _GIVEN]
    fits = need_bytes(rest) <= has
    if not fits:
        without = "" if given is None else ", before any KV cache"
        yield Verdict(
            id=shortage.id,
            severity=Severity.BLOCK,
            title=shortage.title,
            evidence=f"{_sum(rest)}{without}, and {node.name} {says}",
            remedy=shortage.remedy,
            node=node.id,
        )
    if given is not None and need_bytes(lines) > has:
        yield Verdict(
            id="KV_BYTES_NO_CHECK",
            severity=Severity.BLOCK,
            title=shortage.title,
            evidence=f"{_sum(lines)}, and {node.name} {says}",
            remedy=_FEWER if fits else f"once the rest fits, {_FEWER}",
            node=node.id,
        )


def _sum(lines: Sequence[MemoryLine]) -> str:
    return (
        f"{' + '.join(f'{line.bytes / GIB:.1f} {line.label}' for line in lines)} = {_gib(need_bytes(lines))}"
    )


def _share_verdicts(profile: Profile, members: Sequence[NodeFacts]) -> list[Verdict]:
    """What the engine allows itself, against what it must hold and what the node must keep."""
    share = _share(profile)
    node = min((node for node in members if node.memory_total), key=lambda n: n.memory_total, default=None)
    if share is None or node is None or node.local:
        return []
    found = []
    allowed = int(share * node.memory_total)
    says = (
        f"gpu-memory-utilization {share:g} of the {_gib(node.memory_total)} of {node.name} is {_gib(allowed)}"
    )
    kv = kv_need(profile)
    if kv is not None:
        least = _held(profile) + kv.bytes * profile.memory.kv.requests
        if least > allowed:
            found.append(
                Verdict(
                    id="KV_FIT",
                    severity=Severity.BLOCK,
                    title="vLLM would give up after loading: its share of memory does not hold the KV cache",
                    evidence=f"{says}; weights and runtime take {_gib(_held(profile))}, "
                    f"{_kv_label(kv, profile.memory.kv.requests)} {_gib(least - _held(profile))}",
                    remedy="lower max-model-len, choose a smaller KV dtype, or raise gpu-memory-utilization",
                    node=node.id,
                )
            )
    kept = node.memory_total - allowed
    reserve = round(profile.memory.reserve_gib * GIB)
    if kept < reserve:
        found.append(
            Verdict(
                id="MEMORY_RESERVE",
                severity=Severity.BLOCK,
                title="vLLM's share of the memory leaves the node less than its reserve",
                evidence=f"{says}; that leaves {_gib(kept)}, and memory.reserve_gib is {_gib(reserve)}",
                remedy="lower gpu-memory-utilization",
                node=node.id,
            )
        )
    return found


def _pages_verdict(kv: KvNeed) -> Verdict:
    pages = ", ".join(f"{page:,}" for page in kv.pages)
    return Verdict(
        id="KV_PAGES",
        severity=Severity.WARN,
        title="pages of different sizes make the KV cache cost far more than its content",
        evidence=f"a request of {kv.length:,} tokens takes {_gib(kv.bytes)} for {_gib(kv.content_bytes)} of "
        f"content: pages of {pages} bytes are all billed as the largest "
        f"(KV {kv.dtype}, drafter {kv.draft_dtype or 'none'})",
        remedy="give the drafter the target's KV dtype (no kv_cache_dtype in speculative-config), or set "
        f"{LAYOUT_VARIABLE}: BLNHC, or use a mod that gives the drafter smaller pages",
    )


def _share(profile: Profile) -> float | None:
    """The part of the pool that vLLM allows itself; None when it goes by bytes, or when nobody knows."""
    args = profile.engine.args
    if _BYTES in args:
        return None
    try:
        return float(str(args["gpu-memory-utilization"]))
    except KeyError:
        return _DEFAULT_UTILIZATION if profile.memory.kv.layers else None
    except ValueError:
        return None


def _given_bytes(profile: Profile) -> int | None:
    """Of the KV cache, if it is given so."""
    return whole_number(profile.engine.args.get(_BYTES))


def _held(profile: Profile) -> int:
    return round((profile.memory.weights_gib + profile.memory.runtime_gib) * GIB)


def _kv_label(kv: KvNeed, requests: int) -> str:
    count = f"{requests} request{'s' if requests > 1 else ''}"
    return f"KV cache of {count} of {kv.length:,} tokens ({_kv_dtypes(kv)})"


def _kv_dtypes(kv: KvNeed) -> str:
    what = kv.dtype if kv.draft_dtype in (None, kv.dtype) else f"{kv.dtype}, drafter {kv.draft_dtype}"
    return f"{what}, packed pages" if kv.packed else what


def _gib(number: float) -> str:
    return f"{number / GIB:.1f} GiB"
