"""What the agent reads of a node, from files as a kernel writes them."""

from pathlib import Path

import pytest

from sparkd.detect.look import Counters, rate
from sparkd.records.memory import Memory, Pressure
from sparkd_agent.watch.sample import Sampler, parse_counters, parse_memory, parse_pressure
from sparkd_agent.watch.threads import WATCHED

CAPTURED = Path(__file__).parents[2] / "fixtures" / "nvidia"
MEMINFO = b"""MemTotal:       126823252 kB
MemFree:          1190340 kB
MemAvailable:    93215648 kB
Buffers:           204112 kB
CmaTotal:               0 kB
CmaFree:           940604 kB
HugePages_Total:       0
"""
PRESSURE = b"""some avg10=1.50 avg60=0.39 avg300=0.08 total=1234
full avg10=0.25 avg60=0.00 avg300=0.00 total=567
"""
VMSTAT = b"""nr_free_pages 297585
workingset_refault_anon 3
workingset_refault_file 4000
pswpin 10
pswpout 5
allocstall_dma 1
allocstall_dma32 0
allocstall_normal 20
allocstall_movable 300
pgsteal_direct 90
pgsteal_direct_throttle 7
pgscan_direct 100
pgscan_direct_throttle 9
oom_kill 2
compact_stall 44
compact_fail 4
"""
COUNTERS = Counters(1234, 567, 321, 100, 90, 4000, 15, 2, 44)


def lay_out(proc: Path, meminfo: bytes = MEMINFO, pressure: bytes = PRESSURE, vmstat: bytes = VMSTAT) -> None:
    (proc / "pressure").mkdir(exist_ok=True)
    (proc / "meminfo").write_bytes(meminfo)
    (proc / "pressure" / "memory").write_bytes(pressure)
    (proc / "vmstat").write_bytes(vmstat)


def sampler(proc: Path) -> Sampler:
    return Sampler(proc, proc / "kmsg")


def test_bytes_and_per_cent() -> None:
    assert parse_memory(MEMINFO) == Memory(126823252 * 1024, 93215648 * 1024, 1190340 * 1024)
    assert parse_pressure(PRESSURE) == Pressure(1.5, 0.25)
    assert parse_counters(PRESSURE, VMSTAT) == COUNTERS


def test_kernels_before_5_9_count_refaults_in_one() -> None:
    assert parse_counters(b"", b"workingset_refault 12\n").refaults == 12


@pytest.mark.parametrize(
    "meminfo", [b"", b"MemTotal: 12 kB\n", MEMINFO.replace(b"MemAvailable", b"MemAvail")]
)
def test_half_a_memory_is_none(meminfo: bytes) -> None:
    assert parse_memory(meminfo) is None


def test_every_look_is_a_fresh_one(tmp_path: Path) -> None:
    lay_out(tmp_path)
    (tmp_path / "kmsg").write_text("6,1,1,-;an old NVRM: NV_ERR_NO_MEMORY\n")
    looks = sampler(tmp_path)
    first = looks.look(10.0)
    assert (first.memory, first.counters, first.no_memory_lines) == (parse_memory(MEMINFO), COUNTERS, 0)
    assert looks.pressure == Pressure(1.5, 0.25)
    assert looks.cma() == (0, 940604 * 1024)
    lay_out(
        tmp_path, MEMINFO.replace(b"1190340", b"1190341"), b"", VMSTAT.replace(b"file 4000", b"file 9000")
    )
    with (tmp_path / "kmsg").open("a") as kmsg:
        kmsg.write("4,2,2,-;NVRM: x [NV_ERR_NO_MEMORY] (0x00000051)\n" * 3)
    second = looks.look(12.0)
    assert second.memory is not None
    assert (second.memory.free, looks.pressure, second.no_memory_lines) == (1190341 * 1024, Pressure(), 3)
    assert rate((first, second), "refaults") == 2500.0
    assert rate((first, second), "full_us") is None
    looks.close()


def test_what_cannot_be_read_is_none(tmp_path: Path) -> None:
    """A kernel without pressure accounting has no such file, or refuses to read it."""
    (tmp_path / "meminfo").mkdir()
    looks = sampler(tmp_path)
    look = looks.look(1.0)
    assert (look.memory, look.counters, look.threads, looks.pressure) == (None, Counters(), None, Pressure())
    assert looks.cma() == (None, None)
    looks.close()


def test_a_node_with_a_gpu_as_captured() -> None:
    text = (CAPTURED / "h200-procfs-nvidia-smi.txt").read_bytes()
    memory = parse_memory(text)
    assert memory is not None
    assert memory.total == 131981020 * 1024
    assert parse_pressure(text[text.index(b"==> /proc/pressure/memory") :]) == Pressure(0.0, 0.0)
    threads = [
        line.split(b"[")[1].split(b"]")[0] for line in text.splitlines() if line.startswith(b"/proc/1")
    ]
    named = [name for name in threads if b"[" not in name and WATCHED.match(name)]
    assert {*threads} - {*named} == {b"nvidia"}


def test_the_kernel_at_hand() -> None:
    looks = Sampler()
    memory = looks.look(0.0).memory
    looks.close()
    assert memory is not None
    assert memory.total > memory.available > 0
