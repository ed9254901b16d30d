"""NVML in its thread: answers, silence, and why there is none. The library itself is not here to be asked."""

import threading
import time
from pathlib import Path

import pytest

from sparkd.detect.gpu import GpuLook
from sparkd_agent.watch.driver import library_version, module_version
from sparkd_agent.watch.nvml import GpuThread, open_nvml
from tests.bed.gang import until

LOOK = GpuLook(0.0, name="NVIDIA GB10", utilization=96.0)


class Source:
    """Answers until it is told to hang."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.closed = threading.Event()

    def looks(self, _: float) -> tuple[GpuLook, ...]:
        self.goes_on.wait(60.0)
        return (LOOK,)

    def close(self) -> None:
        self.closed.set()


def test_an_answer_and_then_silence() -> None:
    source = Source()
    thread = GpuThread(lambda: source)
    until(lambda: thread.looks(time.monotonic()) == (LOOK,), what="an answer")
    assert thread.state(time.monotonic()) is None
    source.goes_on.clear()
    later = time.monotonic() + 60.0
    assert thread.looks(later) is None
    assert "has not answered for" in (thread.state(later) or "")
    thread.close()  # at once, whatever the driver does
    source.goes_on.set()
    assert source.closed.wait(10.0)


def test_a_driver_that_hangs_from_the_start_is_unknown() -> None:
    source = Source()
    source.goes_on.clear()
    thread = GpuThread(lambda: source)
    assert thread.looks(time.monotonic()) is None
    assert thread.state(time.monotonic()) == "NVML has not answered yet"
    thread.close()
    source.goes_on.set()
    assert source.closed.wait(10.0)


def test_no_library_is_said_and_never_zero() -> None:
    thread = GpuThread(lambda: open_nvml("libnvidia-ml-that-is-not-there.so"))
    until(lambda: "no NVML: libnvidia-ml-that" in (thread.state(time.monotonic()) or ""), what="the reason")
    assert thread.looks(time.monotonic()) is None
    thread.close()


VERSION = """NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (builder)
GCC version:  gcc version 15.3.0 (GCC)
"""


def test_versions_of_module_and_library(tmp_path: Path) -> None:
    assert module_version(tmp_path) is None
    (tmp_path / "driver" / "nvidia").mkdir(parents=True)
    (tmp_path / "driver" / "nvidia" / "version").write_text(VERSION)
    assert module_version(tmp_path) == "580.159.04"
    assert library_version((tmp_path,)) is None
    (tmp_path / "libnvidia-ml.so.580.142").touch()
    (tmp_path / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.580.142")
    assert library_version((tmp_path / "nowhere", tmp_path)) == "580.142"


@pytest.mark.parametrize("text", ["", "NVRM version: none\n"])
def test_no_version(tmp_path: Path, text: str) -> None:
    (tmp_path / "driver" / "nvidia").mkdir(parents=True)
    (tmp_path / "driver" / "nvidia" / "version").write_text(text)
    assert module_version(tmp_path) is None
