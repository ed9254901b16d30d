"""NVIDIA's management library through ctypes, in a thread of its own.

It may block for as long as the driver does, so nobody waits for it: a thread asks, the loop takes the last
answer, and one that is too old is unknown. Fifteen functions are used, so the binding is here: `nvidia-ml-py`
is the same ctypes calls with 6,000 lines around them, which would stay in the agent's locked memory.
"""

import ctypes
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from sparkd.detect.gpu import GpuLook, GpuProcess
from sparkd.records.defaults import DEFAULTS, Defaults
from sparkd_agent.watch.driver import LIBRARY
from sparkd_agent.watch.loaded import give_back

_SUCCESS, _INSUFFICIENT_SIZE, _VERSION_MISMATCH = 0, 7, 18
_CLOCK_SM, _TEMPERATURE_GPU = 1, 0
_TEXT_BYTES: Final = 96
_PROCESSES: Final = 256
_NO_VALUE: Final = (1 << 64) - 1
"""NVML_VALUE_NOT_AVAILABLE, as an unsigned long long."""


class GpuSource(Protocol):
    """What the thread asks. Calls may block; none raises."""

    def looks(self, at: float) -> tuple[GpuLook, ...]: ...

    def close(self) -> None: ...


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t since its second version."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


@dataclass(frozen=True, slots=True)
class Nvml:
    """The library, initialised. What a GPU does not support (a GB10 has no memory of its own) is None."""

    library: ctypes.CDLL
    devices: tuple[tuple[ctypes.c_void_p, str], ...]

    def looks(self, at: float) -> tuple[GpuLook, ...]:
        return tuple(self._look(index, handle, name, at) for index, (handle, name) in enumerate(self.devices))

    def close(self) -> None:
        self.library.nvmlShutdown()

    def _look(self, index: int, handle: ctypes.c_void_p, name: str, at: float) -> GpuLook:
        utilization = self._ask("nvmlDeviceGetUtilizationRates", handle, _Utilization())
        milliwatts = self._ask("nvmlDeviceGetPowerUsage", handle, ctypes.c_uint())
        celsius = self._ask("nvmlDeviceGetTemperature", handle, ctypes.c_uint(), _TEMPERATURE_GPU)
        mhz = self._ask("nvmlDeviceGetClockInfo", handle, ctypes.c_uint(), _CLOCK_SM)
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons", handle, ctypes.c_ulonglong())
        if reasons is None:  # before driver 535 it had another name
            reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle, ctypes.c_ulonglong())
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle, _Memory())
        return GpuLook(
            at,
            index,
            name,
            utilization=None if utilization is None else float(utilization.gpu),
            sm_mhz=None if mhz is None else float(mhz.value),
            watts=None if milliwatts is None else milliwatts.value / 1000,
            celsius=None if celsius is None else float(celsius.value),
            reasons=None if reasons is None else int(reasons.value),
            memory_total=None if memory is None else int(memory.total),
            memory_used=None if memory is None else int(memory.used),
            processes=self._processes(handle),
        )

    def _ask(self, function: str, handle: ctypes.c_void_p, answer: Any, *given: int) -> Any:
        """The answer, or None if this library or this GPU does not know the question."""
        call = getattr(self.library, function, None)
        if call is None or call(handle, *given, ctypes.byref(answer)) != _SUCCESS:
            return None
        return answer

    def _processes(self, handle: ctypes.c_void_p) -> tuple[GpuProcess, ...] | None:
        call = getattr(self.library, "nvmlDeviceGetComputeRunningProcesses_v3", None)
        count = ctypes.c_uint(_PROCESSES)
        found = (_Process * _PROCESSES)()
        if call is None or call(handle, ctypes.byref(count), found) not in (_SUCCESS, _INSUFFICIENT_SIZE):
            return None
        return tuple(
            GpuProcess(one.pid, None if one.used == _NO_VALUE else one.used)
            for one in found[: min(count.value, _PROCESSES)]
        )


def open_nvml(library: str = LIBRARY) -> Nvml | str:
    """The library, or why there is none: no driver, or one that was updated under the running kernel."""
    try:
        nvml = ctypes.CDLL(library)
    except OSError as error:
        return f"no NVML: {error}"
    status = nvml.nvmlInit_v2()
    if status == _VERSION_MISMATCH:
        return "NVML is of another version than the loaded kernel module: reboot this node"
    if status != _SUCCESS:
        return f"NVML does not start (status {status})"
    count = ctypes.c_uint()
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    devices = []
    for index in range(count.value):
        handle, name = ctypes.c_void_p(), ctypes.create_string_buffer(_TEXT_BYTES)
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == _SUCCESS:
            nvml.nvmlDeviceGetName(handle, name, _TEXT_BYTES)
            devices.append((handle, name.value.decode(errors="replace")))
    found = Nvml(nvml, tuple(devices))
    found.looks(0.0)  # the first answers need more than all others
    give_back((LIBRARY.partition(".")[0], "libcuda."))
    return found


class GpuThread:
    """Asks every four seconds, and while `often` says so (beside a rank) once a second. `why` says in words
    why nothing is known.
    """

    def __init__(
        self, opener: Callable[[], GpuSource | str] = open_nvml, limits: Defaults = DEFAULTS
    ) -> None:
        self._opener = opener
        self._limits = limits
        self.often = False
        self._stop = threading.Event()
        self._answered: tuple[GpuLook, ...] = ()
        self._answered_at = self._due = time.monotonic()
        """When the last answer came, and when the next one should."""
        self.why: str | None = "NVML has not answered yet"
        self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)
        self._thread.start()

    def looks(self, at: float) -> tuple[GpuLook, ...] | None:
        """The last answer; None if there is none, or if it is too old (`at` in monotonic seconds)."""
        if self.why is not None:
            return None
        return self._answered if at - self._due <= self._limits.gpu_answer_s else None

    def state(self, at: float) -> str | None:
        """Why nothing is known; None while something is."""
        if self.why is None and at - self._due > self._limits.gpu_answer_s:
            return f"NVML has not answered for {at - self._answered_at:.0f} s: the driver may be stuck"
        return self.why

    @property
    def _pause_s(self) -> float:
        return self._limits.gpu_look_s if self.often else self._limits.watch_idle_s

    def close(self) -> None:
        """Does not wait: a driver that is stuck never lets the thread end."""
        self._stop.set()

    def _run(self) -> None:
        source = self._opener()
        if isinstance(source, str):
            self.why = source
            return
        try:
            while not self._stop.wait(0.0 if self.why else self._pause_s):
                looks = source.looks(time.monotonic())
                self._answered, self._answered_at = looks, time.monotonic()
                self._due = self._answered_at + self._pause_s
                self.why = None
        finally:
            source.close()
