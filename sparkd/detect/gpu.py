"""Whether a GPU is stuck, spins or throttles. Pure; what NVML does not say is None and judges nothing.

Utilisation counts kernels that are resident, not work: 100 % is also what waiting for a dead NCCL peer looks
like. The clock tells the two faults apart: stuck in low power it is under 1 GHz, spinning it is normal.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from sparkd.records.defaults import DEFAULTS, Defaults
from sparkd.records.verdict import Severity, Verdict

T = TypeVar("T", int, float)

_THERMAL: Final = 0x20 | 0x40
_POWER_BRAKE: Final = 0x80
"""Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h)."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    pid: int
    bytes: int | None


@dataclass(frozen=True, slots=True)
class GpuLook:
    """One GPU at a moment (monotonic seconds)."""

    at: float
    index: int = 0
    name: str = ""
    utilization: float | None = None
    """Per cent."""
    sm_mhz: float | None = None
    watts: float | None = None
    celsius: float | None = None
    reasons: int | None = None
    """Why the clocks are what they are, as NVML's bits."""
    memory_total: int | None = None
    """None on a GB10, which has one pool of memory: NVML does not support the question there."""
    memory_used: int | None = None
    processes: tuple[GpuProcess, ...] | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    looks: tuple[GpuLook, ...] = ()
    """As far back as anything is judged."""


def observe(gpu: Gpu, look: GpuLook, limits: Defaults = DEFAULTS) -> Gpu:
    """Take one look into account; one that was seen before changes nothing."""
    if gpu.looks and gpu.looks[-1].at >= look.at:
        return gpu
    begin = look.at - limits.gpu_judge_s - 2 * limits.gpu_look_s
    return Gpu((*(one for one in gpu.looks if one.at >= begin), look))


def verdicts(gpu: Gpu, *, moving: bool | None, limits: Defaults = DEFAULTS) -> tuple[Verdict, ...]:
    """What holds now. `moving`: whether the engine is known to complete steps; None: nobody can say."""
    found = [_stuck_or_spinning(gpu, moving, limits), _throttled(gpu, limits)]
    return tuple(verdict for verdict in found if verdict is not None)


def _stuck_or_spinning(gpu: Gpu, moving: bool | None, limits: Defaults) -> Verdict | None:
    looks = _last(gpu, limits.gpu_judge_s)
    busy = _known(one.utilization for one in looks)
    watts, clocks = _known(one.watts for one in looks), _known(one.sm_mhz for one in looks)
    if not looks or busy is None or watts is None or clocks is None:
        return None
    if min(busy) < limits.gpu_busy_percent or max(watts) >= limits.gpu_idle_watts:
        return None
    what = (
        f"utilisation {_middle(busy):.0f} %, {_middle(clocks):.0f} MHz and {_middle(watts):.1f} W over "
        f"{looks[-1].at - looks[0].at:.0f} s"
    )
    if _middle(clocks) < limits.gpu_slow_mhz:
        reasons = looks[-1].reasons
        sure = ", and no reason for it is given" if reasons == 0 else ""
        return Verdict(
            "LOW_POWER_STUCK",
            Severity.WARN,
            "the GPU is stuck in a low-power state: its rank slows the whole gang down",
            evidence=what + sure,
            cause="the power controller did not come back from a limit; a reboot does not reset it",
            remedy="shut the node down and unplug its power cable at both ends for a minute",
        )
    if moving:
        return None
    return Verdict(
        "SPIN_DEADLOCK",
        Severity.WARN,
        "the GPU runs a kernel that waits and computes nothing",
        evidence=what + ("" if moving is None else ", and the engine completes no step"),
        cause="a collective waits for a peer that is gone or stuck",
        remedy="look at the other ranks; the gang is ended when its pulse is not answered",
    )


def _throttled(gpu: Gpu, limits: Defaults) -> Verdict | None:
    looks = _last(gpu, limits.gpu_hot_s)
    reasons = _known(one.reasons for one in looks)
    if not looks or reasons is None:
        return None
    celsius = looks[-1].celsius
    heat = f"{celsius:.0f} °C" if celsius is not None else "temperature unknown"
    if all(bits & _THERMAL for bits in reasons):
        return Verdict(
            "THERMAL_THROTTLE",
            Severity.WARN,
            "the GPU is too hot and slows down",
            evidence=f"{heat}, clocks limited for {limits.gpu_hot_s:.0f} s (reasons {reasons[-1]:#x})",
            remedy="see to the node's air: its sides must be free, and nothing warm may stand below it",
        )
    if all(bits & _POWER_BRAKE for bits in reasons):
        return Verdict(
            "POWER_BRAKE",
            Severity.WARN,
            "the power supply holds the GPU back",
            evidence=f"power brake for {limits.gpu_hot_s:.0f} s (reasons {reasons[-1]:#x}), {heat}",
            remedy="use the adapter that came with the node, straight from the wall",
        )
    return None


def _last(gpu: Gpu, span_s: float) -> tuple[GpuLook, ...]:
    """The looks of the span; none if they do not cover it yet."""
    if not gpu.looks or gpu.looks[-1].at - gpu.looks[0].at < span_s:
        return ()
    begin = gpu.looks[-1].at - span_s
    return tuple(one for one in gpu.looks if one.at >= begin)


def _known(values: Iterable[T | None]) -> list[T] | None:
    """All of them, or None if any is unknown."""
    found = list(values)
    known = [value for value in found if value is not None]
    return known if len(known) == len(found) else None


def _middle(values: list[float]) -> float:
    """`statistics.median` for numbers that are told to people, without the MiB that its module takes."""
    return sorted(values)[len(values) // 2]
