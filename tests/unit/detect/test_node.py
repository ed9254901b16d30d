"""Single looks at a node, each with what must and what must not be said."""

from sparkd.detect.node import cma, driver, kernel_lines, late, oom_kills, other_killers, stale_shm
from sparkd.records.defaults import GIB


def test_other_killers_are_named() -> None:
    (verdict,) = other_killers(["sshd", "systemd-oomd", "earlyoom", "python3"])
    assert (verdict.id, "earlyoom, systemd-oomd" in verdict.title) == ("OTHER_KILLER", True)
    assert not other_killers(["sshd", "oomd-not", "kswapd0"])


def test_case_31_cma() -> None:
    (verdict,) = cma(0, 940604 * 1024)
    assert (verdict.id, verdict.remedy) == ("KHO_CMA", "boot with kho=off")
    assert not cma(262144, 100)
    assert not cma(0, 0)
    assert not cma(None, 5)


def test_a_driver_that_waits_for_a_reboot() -> None:
    (verdict,) = driver("580.95.05", "580.142")
    assert (verdict.id, verdict.remedy) == ("DRIVER_MISMATCH", "reboot this node")
    assert not driver("580.142", "580.142")
    assert not driver(None, "580.142")
    assert not driver("580.142", None)


def test_stale_shared_memory() -> None:
    files = [(f"psm_{number}", GIB) for number in range(7)]
    (verdict,) = stale_shm([*files, ("vllm_offload_2510ed76.mmap", 17 * GIB)])
    assert verdict.title.startswith("24.0 GiB")
    assert "vllm_offload_2510ed76.mmap" in verdict.evidence
    assert "and 3 more" in verdict.evidence
    assert not stale_shm([])
    assert not stale_shm([("psm_1", GIB // 100)])


def test_a_late_agent() -> None:
    assert late(1.5)[0].evidence == "it came 1.5 s too late to look at this node's memory"
    assert not late(0.9)


def test_the_kernel_log() -> None:
    oom = "Out of memory: Killed process 812 (VLLM::Worker_TP) total-vm:1kB"
    found = kernel_lines(
        ["eth0: link up", oom, "NVRM: Xid (PCI:000f:01:00): 79, GPU has fallen off the bus."]
    )
    assert [verdict.id for verdict in found] == ["KERNEL_OOM", "GPU_XID"]
    assert found[0].evidence == oom
    later = oom.replace("process ", "process 9")
    assert kernel_lines([oom, later])[0].evidence == f"{oom}\n{later}"
    assert not kernel_lines(["NVRM: loading NVIDIA UNIX Open Kernel Module"])


def test_oom_kills_by_the_counter_alone() -> None:
    assert [verdict.id for verdict in oom_kills(2)] == ["KERNEL_OOM"]
    assert not oom_kills(0)
