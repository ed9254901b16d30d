"""What the agent reads of a node's memory, from files as a kernel writes them."""

from pathlib import Path

import pytest

from sparkd.records.memory import Memory, Pressure
from sparkd.records.report import Sample
from sparkd_agent.watch.sample import Sampler, parse_memory, parse_pressure

MEMINFO = b"""MemTotal:       126823252 kB
MemFree:          1190340 kB
MemAvailable:    93215648 kB
Buffers:           204112 kB
HugePages_Total:       0
"""
PRESSURE = b"""some avg10=1.50 avg60=0.39 avg300=0.08 total=1234
full avg10=0.25 avg60=0.00 avg300=0.00 total=567
"""


def lay_out(proc: Path, meminfo: bytes, pressure: bytes) -> None:
    (proc / "pressure").mkdir(exist_ok=True)
    (proc / "meminfo").write_bytes(meminfo)
    (proc / "pressure" / "memory").write_bytes(pressure)


def test_bytes_and_per_cent() -> None:
    assert parse_memory(MEMINFO) == Memory(126823252 * 1024, 93215648 * 1024, 1190340 * 1024)
    assert parse_pressure(PRESSURE) == Pressure(1.5, 0.25)


@pytest.mark.parametrize(
    "meminfo", [b"", b"MemTotal: 12 kB\n", MEMINFO.replace(b"MemAvailable", b"MemAvail")]
)
def test_half_a_memory_is_none(meminfo: bytes) -> None:
    assert parse_memory(meminfo) is None


def test_every_look_is_a_fresh_one(tmp_path: Path) -> None:
    lay_out(tmp_path, MEMINFO, PRESSURE)
    sampler = Sampler(tmp_path)
    assert sampler.take() == Sample(parse_memory(MEMINFO), Pressure(1.5, 0.25))
    lay_out(tmp_path, MEMINFO.replace(b"1190340", b"1190341"), b"")
    second = sampler.take()
    assert second.memory is not None
    assert (second.memory.free, second.pressure) == (1190341 * 1024, Pressure())
    sampler.close()


def test_what_cannot_be_read_is_none(tmp_path: Path) -> None:
    """A kernel without pressure accounting has no such file, or refuses to read it."""
    (tmp_path / "meminfo").mkdir()
    sampler = Sampler(tmp_path)
    assert sampler.take() == Sample(None, Pressure())
    sampler.close()


def test_the_kernel_at_hand() -> None:
    sampler = Sampler()
    memory = sampler.take().memory
    sampler.close()
    assert memory is not None
    assert memory.total > memory.available > 0
