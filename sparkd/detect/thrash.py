"""Whether a node's memory collapses, in four grades. Pure; times are monotonic seconds.

    calm ──> watch ──> evict ──> shed ──> end
      ^        │         │         │       │      up at once; down only after 10 s well above the floor
      └────────┴─────────┴─────────┴───────┘      without any trouble

- watch: less than a few GiB above the floor, or some pressure. Look more often; nothing else.
- evict: below the floor; or reclaim in trouble near it; or the free memory is gone and a UVM thread is busy.
- shed: below the floor for a while, or in trouble for a moment, or a first NV_ERR_NO_MEMORY.
- end: trouble for three of five seconds; or almost nothing available; or NV_ERR_NO_MEMORY with little left.

Low memory alone never ends a gang above the critical line (case 6: a healthy load at 6.0 GiB was killed). On
a GB10 `free` is no measure: 1 GiB of MemFree beside a warm page cache is normal, so MemAvailable decides.
"""

from dataclasses import dataclass, replace
from typing import Final, Literal

from sparkd.detect.look import PAGE_BYTES, Look, rate, within
from sparkd.records.defaults import DEFAULTS, GIB, MIB, Defaults

Grade = Literal["calm", "watch", "evict", "shed", "end"]
GRADES: Final[tuple[Grade, ...]] = ("calm", "watch", "evict", "shed", "end")


@dataclass(frozen=True, slots=True)
class Floor:
    """MemAvailable that must be left (bytes), and the phase of the rank that it is for, in words."""

    bytes: int = DEFAULTS.memory_floor_bytes
    phase: str = "no rank"


@dataclass(frozen=True, slots=True)
class Thrash:
    """`verdict` is the stable id of what was found; both texts stay while the grade does."""

    grade: Grade = "calm"
    verdict: str = ""
    reason: str = ""
    since: float = 0.0
    looks: tuple[Look, ...] = ()
    """Of the last window."""
    troubled: tuple[tuple[float, float], ...] = ()
    """(when, seconds that the look stands for): low and in trouble."""
    low_since: float | None = None
    clear_since: float | None = None


@dataclass(frozen=True, slots=True)
class _Found:
    grade: Grade
    verdict: str = ""
    why: str = ""


def observe(thrash: Thrash, look: Look, floor: Floor, limits: Defaults = DEFAULTS) -> Thrash:
    """Take one look into account."""
    before = thrash.looks[-1].at if thrash.looks else look.at
    looks = within((*thrash.looks, look), limits.watch_window_s)
    signs = _signs(looks, limits)
    available = look.memory.available if look.memory is not None else None
    low = available is not None and available < floor.bytes
    pressed = low or (_signature(look, limits) is not None and _below(available, limits.signature_free_bytes))
    troubled = thrash.troubled
    if pressed and signs:
        troubled = (*troubled, (look.at, min(look.at - before, limits.watch_gap_s)))
    thrash = replace(
        thrash,
        looks=looks,
        troubled=tuple(one for one in troubled if one[0] > look.at - limits.watch_window_s),
        low_since=(thrash.low_since if thrash.low_since is not None else look.at) if low else None,
    )
    found = _judge(thrash, look, floor, signs, limits)
    clear = not signs and (available is None or available >= floor.bytes + limits.memory_leave_bytes)
    return _move(thrash, found, _in_words(found, look, floor), clear=clear, now=look.at, limits=limits)


def _judge(thrash: Thrash, look: Look, floor: Floor, signs: tuple[str, ...], limits: Defaults) -> _Found:
    """What this look alone asks for; the worst first."""
    lines = sum(one.no_memory_lines for one in thrash.looks)
    signature = _signature(look, limits)
    trouble_s = sum(seconds for _, seconds in thrash.troubled)
    why = "; ".join(signs)
    verdict = "UVM_THRASH" if signature is not None else "MEMORY_THRASH"
    if lines and (lines >= limits.no_memory_burst or _available_below(look, limits.no_memory_bytes)):
        told = f"{lines} kernel line{'s' if lines > 1 else ''} of NV_ERR_NO_MEMORY"
        return _Found("end", "HOST_WEDGE_NVRM", told)
    if _critical(thrash, limits):
        return _Found(
            "end", "MEMORY_CRITICAL", "; ".join((f"less than {_gib(_critical_bytes(limits))}", *signs))
        )
    if trouble_s >= limits.trouble_end_s:
        return _Found("end", verdict, f"{why} (for {trouble_s:.0f} of {limits.watch_window_s:.0f} s)")
    if lines:
        return _Found("shed", "HOST_WEDGE_NVRM", "a kernel line of NV_ERR_NO_MEMORY")
    if trouble_s >= limits.trouble_shed_s:
        return _Found("shed", verdict, why)
    if thrash.low_since is not None and look.at - thrash.low_since >= limits.memory_low_s:
        return _Found("shed", "MEMORY_LOW", f"below the floor for {look.at - thrash.low_since:.0f} s")
    if signature is not None:
        return _Found("evict", "UVM_THRASH", signature)
    if thrash.low_since is not None:
        return _Found("evict", "MEMORY_LOW", "below the floor")
    near = _available_below(look, near_bytes(look, floor, limits))
    if near and signs:
        return _Found("evict", verdict, why)
    some = rate(thrash.looks, "some_us")
    if near or signs or (some is not None and some / 1e6 >= limits.trouble_some_share):
        return _Found("watch", "MEMORY_NEAR", why or "near the floor, or some pressure")
    return _Found("calm")


def near_bytes(look: Look, floor: Floor, limits: Defaults = DEFAULTS) -> int:
    """Below so much MemAvailable memory counts as short."""
    share = int(limits.memory_near_share * look.memory.total) if look.memory is not None else 0
    return max(floor.bytes + limits.memory_near_bytes, share)


def _move(thrash: Thrash, found: _Found, reason: str, *, clear: bool, now: float, limits: Defaults) -> Thrash:
    old, new = GRADES.index(thrash.grade), GRADES.index(found.grade)
    if new > old:
        return replace(
            thrash, grade=found.grade, verdict=found.verdict, reason=reason, since=now, clear_since=None
        )
    if new == old:
        # What was said first stays said: the numbers are in the samples.
        return thrash if thrash.clear_since is None else replace(thrash, clear_since=None)
    if not clear and thrash.grade != "watch":
        return replace(thrash, clear_since=None)
    since = thrash.clear_since if thrash.clear_since is not None else now
    if now - since < limits.memory_leave_s:
        return replace(thrash, clear_since=since)
    return replace(
        thrash, grade=found.grade, verdict=found.verdict, reason=reason, since=now, clear_since=None
    )


# What trouble looks like ------------------------------------------------------------------------------


def _signs(looks: tuple[Look, ...], limits: Defaults) -> tuple[str, ...]:
    """Every sign that the kernel does not get memory free any more, with its measured value."""
    found = []
    full = rate(looks, "full_us")
    if full is not None and full / 1e6 >= limits.trouble_full_share:
        found.append(f"every task waits for memory {100 * full / 1e6:.0f} % of the time (PSI full)")
    looks = within(looks, limits.trouble_rate_s)
    scanned, freed = rate(looks, "direct_scanned"), rate(looks, "direct_freed")
    if scanned is not None and freed is not None and scanned >= limits.trouble_direct_pages:
        share = freed / scanned
        if share < limits.trouble_direct_yield:
            found.append(f"direct reclaim frees {100 * share:.0f} % of {scanned:.0f} pages a second")
    stalls = rate(looks, "stalls")
    if stalls is not None and stalls >= limits.trouble_stalls:
        found.append(f"{stalls:.0f} allocations a second wait for reclaim")
    compactions = rate(looks, "compactions")
    if compactions is not None and compactions >= limits.trouble_stalls:
        found.append(f"{compactions:.0f} allocations a second wait for compaction")
    swapped = rate(looks, "swapped")
    if swapped is not None and swapped * PAGE_BYTES >= limits.trouble_swap_bytes:
        found.append(f"{swapped * PAGE_BYTES / MIB:.0f} MiB a second of swap")
    refaults = rate(looks, "refaults")
    if refaults is not None and refaults >= limits.trouble_refault_pages:
        found.append(f"{refaults * PAGE_BYTES / MIB:.0f} MiB a second of files are read again (refaults)")
    found += [
        str(thread) for thread in looks[-1].threads or () if thread.share >= limits.trouble_thread_share
    ]
    return tuple(found)


def _signature(look: Look, limits: Defaults) -> str | None:
    """Under 2 GiB free and a busy UVM thread. `free` is meant both ways: see the grades."""
    if look.memory is None or look.memory.free >= limits.signature_free_bytes:
        return None
    busy = [
        thread
        for thread in look.threads or ()
        if thread.name.startswith("UVM ") and thread.share >= limits.trouble_thread_share
    ]
    return f"{_gib(look.memory.free)} free and {busy[0]}" if busy else None


def _critical(thrash: Thrash, limits: Defaults) -> bool:
    """Two looks in a row: one of them may have met a buffer that is freed again."""
    last = thrash.looks[-2:]
    return len(last) == 2 and all(_available_below(look, _critical_bytes(limits)) for look in last)


def _critical_bytes(limits: Defaults) -> int:
    return limits.memory_critical_bytes


def _available_below(look: Look, bound: int) -> bool:
    return look.memory is not None and look.memory.available < bound


def _below(number: int | None, bound: int) -> bool:
    return number is not None and number < bound


def _in_words(found: _Found, look: Look, floor: Floor) -> str:
    if found.grade == "calm":
        return ""
    return f"{measured(look, floor)}: {found.why}"


def measured(look: Look, floor: Floor) -> str:
    """What every reason begins with: the value, the floor and the phase."""
    value = "unknown" if look.memory is None else _gib(look.memory.available)
    return f"MemAvailable {value}, floor {_gib(floor.bytes)} ({floor.phase})"


def _gib(number: int) -> str:
    return f"{number / GIB:.1f} GiB"
