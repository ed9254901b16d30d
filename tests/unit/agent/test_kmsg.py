"""The kernel's log, from a file as the kernel writes its records."""

from pathlib import Path

import pytest

from sparkd_agent.watch.kmsg import KernelLog

NVRM = (
    "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from "
    "_memdescAllocInternal(pMemDesc) @ mem_desc.c:1359"
)


@pytest.fixture
def kmsg(tmp_path: Path) -> Path:
    path = tmp_path / "kmsg"
    path.write_text(f"4,811,101,-;{NVRM}\n")
    return path


def append(path: Path, text: str) -> None:
    with path.open("a") as log:
        log.write(text)


def test_only_what_comes_from_now_on(kmsg: Path) -> None:
    log = KernelLog(kmsg)
    assert log.read() == ()
    append(kmsg, f"4,812,102,-;{NVRM}\n SUBSYSTEM=pci\n DEVICE=+pci:000f:01:00.0\n" * 40)
    assert log.read() == (NVRM,) * 40
    assert log.read() == ()
    log.close()


def test_what_says_nothing_of_memory_or_gpu_is_left_out(kmsg: Path) -> None:
    log = KernelLog(kmsg)
    append(kmsg, "6,813,103,-;usb 1-1: new device\n3,814,104,c;python3 invoked oom-killer: gfp_mask=0x0\n")
    append(kmsg, "3,815,105,-;Out of memory: Killed process 812 (VLLM::Worker_TP) total-vm:1kB; more\n")
    assert log.read() == (
        "python3 invoked oom-killer: gfp_mask=0x0",
        "Out of memory: Killed process 812 (VLLM::Worker_TP) total-vm:1kB; more",
    )
    log.close()


def test_half_a_record_waits_for_its_rest(kmsg: Path) -> None:
    log = KernelLog(kmsg)
    append(kmsg, "4,816,106,-;NVRM: Xid (PCI:0")
    assert log.read() == ()
    append(kmsg, "00f:01:00): 79\n")
    assert log.read() == ("NVRM: Xid (PCI:000f:01:00): 79",)
    log.close()


def test_without_the_right_there_are_no_lines(tmp_path: Path) -> None:
    log = KernelLog(tmp_path / "missing")
    assert (log.readable, log.read()) == (False, ())
    log.close()
