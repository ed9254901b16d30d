"""What keeps an agent running on a node without memory, each in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparkd_agent import privileges
from sparkd_agent.procfs import ProcFs
from sparkd_agent.watch.cache import Cache
from sparkd_agent.watch.protect import STACK_BYTES, spare_sshd
from sparkd_agent.watch.shm import unmapped

HELD = privileges.look().held

LOCK = """
import mmap, re, threading
from sparkd_agent.watch import protect
def kib(field): return int(re.search(rf"^{field}:\\s+(\\d+)", open("/proc/self/status").read(), re.M)[1])
protect.small_stacks()
before = kib("VmRSS")
why_not = protect.lock_memory()
after = kib("VmRSS")
wide = mmap.mmap(-1, 64 << 20)
print(why_not, before, after, kib("VmLck"), kib("VmRSS") - after, threading.stack_size())
"""


def run(program: str) -> list[str]:
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.skipif("ipc_lock" not in HELD, reason="locking memory needs CAP_IPC_LOCK")
def test_locked_memory_does_not_grow_the_process() -> None:
    why_not, before, after, locked, more, stack = run(LOCK)
    assert why_not == "None"
    assert int(locked) > 0
    # All that is mapped counts as locked, and only what is touched is present: plain MCL_FUTURE doubled it.
    assert int(after) <= int(before) * 1.25
    assert int(more) < 8 * 1024, "64 MiB that nobody has touched"
    assert int(stack) == STACK_BYTES


OOM = """
from sparkd_agent.watch import protect
print(protect.spare_from_oom(), open("/proc/self/oom_score_adj").read())
"""


@pytest.mark.skipif("sys_resource" not in HELD, reason="lowering the score needs CAP_SYS_RESOURCE")
def test_the_kernel_spares_the_agent() -> None:
    assert run(OOM) == ["None", "-900"]


def test_the_sshd_that_listens_is_spared_and_its_sessions_are_not(tmp_path: Path) -> None:
    stat = "{} ({}) S {} " + "0 " * 48
    for pid, comm, parent, score in (
        (7, "sshd", 1, 0),
        (8, "sshd", 7, 0),
        (9, "bash", 1, 0),
        (10, "sshd", 1, -1000),
    ):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(stat.format(pid, comm, parent))
        (tmp_path / str(pid) / "oom_score_adj").write_text(f"{score}\n")
    spare_sshd(tmp_path)
    scores = {pid: (tmp_path / str(pid) / "oom_score_adj").read_text().strip() for pid in (7, 8, 9, 10)}
    assert scores == {7: "-900", 8: "0", 9: "0", 10: "-1000"}


def test_the_pages_of_a_checkpoint_are_dropped_and_its_files_are_not(tmp_path: Path) -> None:
    file = tmp_path / "model-00001.safetensors"
    file.write_bytes(os.urandom(1 << 20))
    (tmp_path / "folder").mkdir()
    cache = Cache(None, "it is not root")
    assert cache.drop_checkpoint(tmp_path) == 1 << 20
    assert file.stat().st_size == 1 << 20
    assert cache.drop_checkpoint(tmp_path / "nowhere") == 0
    assert cache.drop_all() == "it is not root"


def test_the_whole_cache_by_the_kernels_control(tmp_path: Path) -> None:
    control = tmp_path / "drop_caches"
    control.touch()
    assert Cache(control).drop_all() is None
    assert control.read_text() == "1\n"
    assert "No such file" in (Cache(tmp_path / "no" / "control").drop_all() or "")


def test_shared_memory_that_nobody_maps(tmp_path: Path) -> None:
    shm = tmp_path / "shm"
    shm.mkdir()
    for name in (
        "psm_held",
        "psm_left",
        "vllm_offload_left.mmap",
        "of_somebody_else",
        "psm_young",
        "psm_empty",
    ):
        (shm / name).write_bytes(b"" if name == "psm_empty" else b"x" * 4096)
        if name != "psm_young":
            os.utime(shm / name, (1000.0, 1000.0))
    with (shm / "psm_held").open("rb"):
        found = unmapped(ProcFs(), shm)
    assert sorted(found) == [(str(shm / "psm_left"), 4096), (str(shm / "vllm_offload_left.mmap"), 4096)]
    assert unmapped(ProcFs(), tmp_path / "nowhere") == []
