"""The load guard: whether memory falls so fast that the floor is reached before anything else can be done.

A load takes everything that the plan says, in bursts: the KV cache is one allocation of tens of GiB, and
17-19 GiB more go after the weights are loaded (case 5). Whatever stays above what was *expected* to be left
is no reason to end a load. Below that, a slope that meets the floor within seconds is. Pure.
"""

from dataclasses import dataclass, replace

from sparkd.detect.look import Look
from sparkd.detect.thrash import Floor, Thrash
from sparkd.records.defaults import DEFAULTS, GIB, Defaults


@dataclass(frozen=True, slots=True)
class Plan:
    """What is known of a rank's appetite. Bytes; None or 0: nobody knows."""

    before: int | None = None
    """MemAvailable when it was started."""
    uses: int = 0
    """What the profile says that it takes, the node's reserve not counted."""
    spike: int = DEFAULTS.load_spike_bytes
    at_loaded: int | None = None
    """MemAvailable when its weights were loaded; None before, and when that is longer ago than a spike."""


@dataclass(frozen=True, slots=True)
class Plunge:
    falling: tuple[tuple[float, int], ...] = ()
    """(monotonic seconds, MemAvailable), newest last."""
    near_since: float | None = None
    """Every look since then saw the line near."""
    line: int = 0
    """The floor, or for a fall that began below it the critical line; it stays while that is near. Bytes."""
    reaches_s: float | None = None
    """Until the line is reached at the present slope; None while memory does not fall fast."""
    reason: str | None = None
    """Why the rank must be ended now; None while it need not."""


def expected_low(plan: Plan, floor: Floor) -> int | None:
    """The lowest MemAvailable that this load explains; None if that would be below the floor, or unknown."""
    found = []
    if plan.before is not None and plan.uses:
        found.append(plan.before - plan.uses)
    if plan.at_loaded is not None:
        found.append(plan.at_loaded - plan.spike)
    return min((low for low in found if low >= floor.bytes), default=None)


def observe(plunge: Plunge, look: Look, floor: Floor, plan: Plan, limits: Defaults = DEFAULTS) -> Plunge:
    """Take one look at MemAvailable into account."""
    if look.memory is None:
        return Plunge()
    at, available = look.at, look.memory.available
    falling = tuple(one for one in plunge.falling if one[0] >= at - 2 * limits.plunge_window_s)
    falling = (*falling, (at, available))
    slope = _slope(falling, limits)
    if slope < limits.plunge_least_bytes:
        return Plunge(falling)
    if plunge.near_since is not None:
        line = plunge.line
    elif available < floor.bytes:  # thrash judges that, unless what is left goes within seconds too
        line = min(limits.memory_critical_bytes, floor.bytes)
    else:
        line = floor.bytes
    reaches_s = max(0.0, (available - line) / slope)
    plunge = replace(plunge, falling=falling, reaches_s=reaches_s, line=line, reason=None)
    low = expected_low(plan, floor)
    if reaches_s >= limits.plunge_s or (low is not None and available > low):
        return replace(plunge, near_since=None)
    since = plunge.near_since if plunge.near_since is not None else at
    if at - since < limits.plunge_hold_s:
        return replace(plunge, near_since=since)
    reason = (
        f"MemAvailable {_gib(available)}, floor {_gib(floor.bytes)} ({floor.phase}): it falls by "
        f"{_gib(slope)} a second and is at {_gib(line)} within {reaches_s:.1f} s"
    )
    return replace(plunge, near_since=since, reason=reason)


def pause_s(thrash: Thrash, plunge: Plunge, limits: Defaults = DEFAULTS) -> float:
    """Until the next look: soon while memory is short, or will be."""
    soon = plunge.reaches_s is not None and plunge.reaches_s < limits.plunge_watch_s
    return limits.watch_fast_s if soon or thrash.grade != "calm" else limits.watch_s


def _slope(falling: tuple[tuple[float, int], ...], limits: Defaults) -> float:
    """Bytes a second that go away, over the window or of late, whichever is slower: one large allocation is a
    step and no slope, and one look in which little went away is no end of it.
    """
    spans = (limits.plunge_window_s, limits.plunge_recent_s)
    return min((_slope_over(falling, span_s) for span_s in spans), default=0.0)


def _slope_over(falling: tuple[tuple[float, int], ...], span_s: float) -> float:
    if len(falling) < 2:
        return 0.0
    at, available = falling[-1]
    first, most = next(one for one in falling if one[0] >= at - span_s or one is falling[-2])
    return (most - available) / (at - first) if at > first else 0.0


def _gib(number: float) -> str:
    return f"{number / GIB:.1f} GiB"
