"""What the watch sees of a real NVIDIA GPU while a program faults 64 MiB of managed memory back and forth.

PYTHONPATH=.:agents python3 -m benchmarks.uvm [SECONDS]

Needs a driver with UVM, nvcc, root (for the kernel's log) and no package but the standard library. It fails
unless a UVM thread was seen at work and named, NVML answered, and a line that was written to the kernel's log
came back.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sparkd.detect.gpu import GpuLook
from sparkd.detect.look import BusyThread
from sparkd.detect.thrash import Floor, Thrash, observe
from sparkd_agent.watch.driver import library_version, module_version
from sparkd_agent.watch.nvml import GpuThread
from sparkd_agent.watch.sample import Sampler

FAULTS = r"""
#include <cuda_runtime.h>
#include <cstdio>
#include <cstdlib>
#include <ctime>

__global__ void touch(char *p, size_t bytes) {
    size_t at = (blockIdx.x * (size_t)blockDim.x + threadIdx.x) * 4096;
    if (at < bytes) p[at] += 1;
}

int main(int argc, char **argv) {
    size_t bytes = 64u << 20, pages = bytes / 4096, rounds = 0;
    char *p;
    if (cudaMallocManaged(&p, bytes) != cudaSuccess) return 2;
    for (size_t i = 0; i < bytes; i += 4096) p[i] = 0;
    time_t end = time(NULL) + atoi(argv[1]);
    while (time(NULL) < end) {
        touch<<<(unsigned)(pages + 255) / 256, 256>>>(p, bytes);
        cudaError_t error = cudaDeviceSynchronize();
        if (error != cudaSuccess) { printf("%s\n", cudaGetErrorString(error)); return 3; }
        for (size_t i = 0; i < bytes; i += 4096) p[i] += 1;
        rounds++;
    }
    printf("%zu rounds of 64 MiB\n", rounds);
    return 0;
}
"""


def main() -> int:
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 45
    with tempfile.TemporaryDirectory() as scratch:
        program = Path(scratch, "faults")
        Path(scratch, "faults.cu").write_text(FAULTS)
        subprocess.run(["nvcc", "-o", program, f"{program}.cu"], check=True)
        return _watch(program, seconds)


def _watch(program: Path, seconds: int) -> int:
    sampler, gpu = Sampler(), GpuThread()
    gpu.often = True
    idle = sampler.look(time.monotonic())
    print("kernel threads without a CUDA process:", _names(idle.threads))
    print("module", module_version(), "library", library_version())
    mark = f"NVRM: a line of benchmarks.uvm at {time.time():.0f}"
    _write_kmsg(mark)
    lines: list[str] = []
    best: dict[str, float] = {}
    spent, looks, thrash, answers = 0.0, 0, Thrash(), 0
    faults = subprocess.Popen([str(program), str(seconds)])
    try:
        while faults.poll() is None:
            begun = time.thread_time()
            # A new UVM thread is found by the scan, every 30 s: the run is made longer than that.
            look = sampler.look(time.monotonic())
            thrash = observe(thrash, look, Floor())
            sampler.search(look.at, short=False)
            spent += time.thread_time() - begun
            looks += 1
            lines += sampler.lines
            for thread in look.threads or ():
                best[thread.name] = max(best.get(thread.name, 0.0), thread.share)
            seen = gpu.looks(time.monotonic())
            answers += seen is not None
            if looks % 5 == 0:
                print(f"{looks:3} s:", _busy(look.threads), "|", _gpu(seen, gpu.state(time.monotonic())))
            time.sleep(1.0)
    finally:
        faults.kill()
        faults.wait()
    print("busiest:", {name: f"{100 * share:.0f} %" for name, share in sorted(best.items()) if share > 0})
    print("grade", thrash.grade, "of a node that is well:", thrash.reason or "nothing to say")
    print("kernel lines:", lines[-3:])
    print(f"{1e3 * spent / max(looks, 1):.2f} ms of processor time a look, {looks} looks")
    gpu.close()
    sampler.close()
    uvm = max((share for name, share in best.items() if name.startswith("UVM GPU")), default=0.0)
    wanted = {"a UVM thread at work": uvm > 0.05, "NVML": answers > 0, "the kernel's log": mark in lines}
    for what, found in wanted.items():
        print(f"{'ok  ' if found else 'FAIL'} {what}")
    return 0 if all(wanted.values()) else 1


def _write_kmsg(text: str) -> None:
    with Path("/dev/kmsg").open("w") as log:
        log.write(f"<6>{text}\n")


def _names(threads: tuple[BusyThread, ...] | None) -> str:
    return "unknown" if threads is None else ", ".join(sorted({thread.name for thread in threads}))


def _busy(threads: tuple[BusyThread, ...] | None) -> str:
    busy = [str(thread) for thread in threads or () if thread.share > 0.01]
    return "; ".join(busy) or "no kernel thread busy"


def _gpu(looks: tuple[GpuLook, ...] | None, why: str | None) -> str:
    if looks is None:
        return why or "NVML: unknown"
    return "; ".join(
        f"{one.name} {one.utilization} % {one.sm_mhz} MHz {one.watts} W {one.celsius} C, reasons "
        f"{one.reasons}, "
        f"memory {one.memory_used} of {one.memory_total}, processes {one.processes}"
        for one in looks
    )


if __name__ == "__main__":
    sys.exit(main())
