"""Versions that differ between the nodes of one gang: vLLM compares nothing, and serves nonsense or hangs.

The odd one out is named: what most nodes have is taken for right, and what rank 0 has if it is a tie.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sparkd.preflight.member import Member
from sparkd.records.facts import EngineVersions, MachineFacts
from sparkd.records.verdict import Severity, Verdict


@dataclass(frozen=True, slots=True)
class _Compared:
    """One thing that nodes should have in common. What a node does not tell is compared with nothing."""

    what: str
    of: Callable[[Member], str | None]
    remedy: str


def _engine(member: Member) -> EngineVersions | None:
    """The one that a rank on this node runs."""
    engines = member.machine.engines if member.machine is not None else ()
    return next((one for one in engines if one.name == "default"), engines[0] if engines else None)


def _package(name: str) -> Callable[[Member], str | None]:
    def look(member: Member) -> str | None:
        engine = _engine(member)
        return engine.packages.get(name) if engine is not None else None

    return look


def _build(member: Member) -> str | None:
    """Of one version there are many builds; without a version there is none."""
    engine = _engine(member)
    return f"{engine.packages.get('vllm')} (files {engine.build})" if engine and engine.build else None


def _python(member: Member) -> str | None:
    engine = _engine(member)
    return engine.python if engine is not None else None


def _fact(look: Callable[[MachineFacts], str | None]) -> Callable[[Member], str | None]:
    return lambda member: (look(member.machine) or None) if member.machine is not None else None


_INSTALL: Final = "install the same there; the interpreter is that of [engine.default] in its agent.toml"
_UPDATE: Final = "bring it to the same state (the updates of its system), and reboot it"
_OF_ENGINE: Final = (
    _Compared("vLLM", _package("vllm"), _INSTALL),
    _Compared("torch", _package("torch"), _INSTALL),
    _Compared("NCCL", _package("nccl"), _INSTALL),
)
_BESIDE: Final = (
    _Compared("CUDA runtime", _package("cuda"), _INSTALL),
    _Compared("triton", _package("triton"), _INSTALL),
    _Compared("FlashInfer", _package("flashinfer"), _INSTALL),
    _Compared("transformers", _package("transformers"), _INSTALL),
    _Compared("Python", _python, _INSTALL),
    _Compared("NVIDIA driver", _fact(lambda machine: machine.driver), _UPDATE),
    _Compared("kernel", _fact(lambda machine: machine.kernel), _UPDATE),
    _Compared("architecture", _fact(lambda machine: machine.architecture), "choose nodes of one kind"),
    _Compared("system firmware", _fact(lambda machine: machine.firmware.get("system")), "fwupdmgr update"),
)
_AGENT: Final = _Compared("agent", _fact(lambda machine: machine.agent), "sparkd nodes upgrade")
_MODS: Final = _Compared("mods", _fact(lambda machine: machine.mods), "sparkd nodes upgrade")


def skew_verdicts(members: Sequence[Member], *, uses_mods: bool) -> Iterator[Verdict]:
    """`uses_mods`: the profile has mods, so ranks with different ones compute different things."""
    for one in _OF_ENGINE:
        yield from _odd_ones("ENGINE_SKEW", Severity.BLOCK, one, members)
    if not any(True for _ in _odd_ones("ENGINE_SKEW", Severity.BLOCK, _OF_ENGINE[0], members)):
        build = _Compared("build of vLLM", _build, _INSTALL)
        yield from _odd_ones("ENGINE_SKEW", Severity.WARN, build, members)
    for one in _BESIDE:
        yield from _odd_ones("HOST_SKEW", Severity.WARN, one, members)
    yield from _odd_ones("AGENT_SKEW", Severity.NOTE, _AGENT, members)
    yield from _odd_ones("MODS_SKEW", Severity.BLOCK if uses_mods else Severity.NOTE, _MODS, members)


def _odd_ones(id_: str, severity: Severity, one: _Compared, members: Sequence[Member]) -> Iterator[Verdict]:
    told = [(member, value) for member in members if (value := one.of(member)) is not None]
    values = [value for _, value in told]
    if len(set(values)) <= 1:
        return
    right = max(dict.fromkeys(values), key=values.count)
    with_it = ", ".join(member.name for member, value in told if value == right)
    for member, value in told:
        if value != right:
            yield Verdict(
                id_,
                severity,
                f"another {one.what} than on the other nodes",
                evidence=f"{value} on {member.name}, {right} on {with_it}",
                remedy=one.remedy,
                node=member.name,
            )
