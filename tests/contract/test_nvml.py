"""The binding against a library with NVML's own signatures (nvml.h), as a GB10 and as an H200 answer."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sparkd.detect.gpu import GpuLook, GpuProcess
from sparkd_agent import privileges
from sparkd_agent.watch.nvml import Nvml, open_nvml

COMPILER = shutil.which("cc") or shutil.which("gcc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")

LIBRARY = r"""
#include <string.h>
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu, compute; } Process;
static int device;
static char devices[13 << 20];
int nvmlInit_v2(void) { memset(devices, 0, sizeof devices); devices[5 << 20] = 7; return INIT; }
int kept(void) { return devices[5 << 20]; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = &device; return index; }
int nvmlDeviceGetName(void *d, char *name, unsigned size) { strncpy(name, "NVIDIA GB10", size); return 0; }
int nvmlDeviceGetUtilizationRates(void *d, Utilization *u) { u->gpu = 96; return d != &device; }
int nvmlDeviceGetPowerUsage(void *d, unsigned *mw) { *mw = 19500; return d != &device; }
int nvmlDeviceGetTemperature(void *d, unsigned sensor, unsigned *t) { *t = 51; return sensor; }
int nvmlDeviceGetClockInfo(void *d, unsigned type, unsigned *mhz) { *mhz = 799; return type != 1; }
#ifdef NEW
int nvmlDeviceGetCurrentClocksEventReasons(void *d, unsigned long long *r) { *r = 0; return 0; }
#else
int nvmlDeviceGetCurrentClocksThrottleReasons(void *d, unsigned long long *r) { *r = 0x20; return 0; }
#endif
int nvmlDeviceGetMemoryInfo(void *d, Memory *m) { m->total = 100; m->free = 60; m->used = 40; return MEMORY; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *count, Process *p) {
    if (*count < 2) return 7;
    *count = 2;
    p[0] = (Process){900, 104277ull << 20, 0, 0};
    p[1] = (Process){901, ~0ull, 0, 0};
    return 0;
}
"""


def built(folder: Path, *defines: str) -> str:
    source, library = folder / "nvml.c", folder / "libnvidia-ml.so.1"
    source.write_text(LIBRARY)
    assert COMPILER is not None
    words = [f"-D{define}" for define in defines]
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", library, source, *words], check=True)
    return str(library)


def test_a_gb10_has_no_memory_of_its_own_and_names_who_holds_the_pool(tmp_path: Path) -> None:
    nvml = open_nvml(built(tmp_path, "INIT=0", "MEMORY=3", "NEW"))
    assert isinstance(nvml, Nvml)
    assert nvml.looks(7.0) == (
        GpuLook(
            7.0,
            0,
            "NVIDIA GB10",
            utilization=96.0,
            sm_mhz=799.0,
            watts=19.5,
            celsius=51.0,
            reasons=0,
            memory_total=None,
            memory_used=None,
            processes=(GpuProcess(900, 104277 << 20), GpuProcess(901, None)),
        ),
    )
    nvml.close()


def test_a_gpu_with_memory_and_an_older_driver(tmp_path: Path) -> None:
    nvml = open_nvml(built(tmp_path, "INIT=0", "MEMORY=0"))
    assert isinstance(nvml, Nvml)
    (look,) = nvml.looks(0.0)
    assert (look.memory_total, look.memory_used, look.reasons) == (100, 40, 0x20)


@pytest.mark.parametrize(("status", "why"), [(18, "reboot this node"), (9, "does not start (status 9)")])
def test_a_library_that_does_not_start(tmp_path: Path, status: int, why: str) -> None:
    found = open_nvml(built(tmp_path, f"INIT={status}", "MEMORY=0"))
    assert isinstance(found, str)
    assert why in found


HELD = """
import ctypes, sys
from sparkd_agent.watch import protect
from sparkd_agent.watch.nvml import Nvml, open_nvml
def kib(): return int(open("/proc/self/status").read().split("VmRSS:")[1].split()[0])
if sys.argv[2]: print(protect.lock_memory(), file=sys.stderr)
before = kib()
nvml = open_nvml(sys.argv[1])
assert isinstance(nvml, Nvml) and nvml.library.kept() == 7 and nvml.looks(7.0)[0].watts == 19.5
print(kib() - before)
nvml.library.nvmlInit_v2()
print(kib() - before)
"""


@pytest.mark.parametrize("locked", ["", "locked"])
def test_what_the_library_has_cleared_for_gpus_that_are_not_there_is_given_back(
    tmp_path: Path, locked: str
) -> None:
    """NVML of driver 580 clears 13 MiB of static memory at its start."""
    if locked and "ipc_lock" not in privileges.look().held:
        pytest.skip("locking memory needs CAP_IPC_LOCK")
    words = [sys.executable, "-P", "-c", HELD, built(tmp_path, "INIT=0", "MEMORY=0"), locked]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    kept, taken_again = map(int, done.stdout.split())
    assert kept < 4 << 10, done
    assert taken_again > 12 << 10, "the library can use all of it"
