"""Kernel threads in laid-out `/proc` trees, the one captured on a real GPU included."""

import re
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

from sparkd.records.defaults import DEFAULTS
from sparkd_agent.watch.threads import KernelThreads

CAPTURED = Path(__file__).parents[2] / "fixtures" / "nvidia" / "uvm-threads-under-faults.txt"
STEP_S = 0.7
"""Between two looks of the captured file."""
KTHREAD, USER = 0x208040, 0x400000


@dataclass
class Tree:
    """A `/proc` of a test's own."""

    root: Path
    started: dict[int, int] = field(default_factory=dict)

    def lay(self, pid: int, name: str, ticks: int = 0, flags: int = KTHREAD) -> None:
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        started = self.started.setdefault(pid, 1000 + pid)
        fields = [
            "S",
            "2",
            "0",
            "0",
            "0",
            "-1",
            str(flags),
            *["0"] * 4,
            str(ticks // 2),
            str(ticks - ticks // 2),
        ]
        rest = ["0", "0", "20", "0", "1", "0", str(started), "0", "0"]
        (folder / "stat").write_text(f"{pid} ({name}) {' '.join([*fields, *rest])}\n")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def shares(threads: KernelThreads, at: float, *, short: bool = False) -> dict[str, float]:
    """What a look shows, and then what comes after each."""
    seen = {thread.name: round(thread.share, 2) for thread in threads.look(at) or ()}
    threads.search(at, short=short)
    return seen


def test_uvm_at_work_as_captured_on_a_real_gpu(tree: Tree) -> None:
    threads = KernelThreads(tree.root)
    seen = []
    line = re.compile(r"(\d) /proc/(\d+) \[(.*)\] (\d+) (\d+)")
    rows = [match.groups() for match in map(line.fullmatch, CAPTURED.read_text().splitlines()) if match]
    for number in ("1", "2", "3"):
        for which, pid, name, user, system in rows:
            if which == number:
                flags = USER if name.startswith("a user process") else KTHREAD
                tree.lay(int(pid), name, int(user) + int(system), flags)
        seen.append(shares(threads, 100.0 + STEP_S * int(number)))
    assert seen[0].keys() == {
        "UVM global queue",
        "UVM deferred release queue",
        "UVM Tools Event Queue",
        "UVM GPU1 BH",
        "UVM GPU1 KC",
    }
    assert seen[2]["UVM GPU1 BH"] == pytest.approx(0.44, abs=0.02)
    assert [share for name, share in seen[2].items() if name != "UVM GPU1 BH"] == [0.0] * 4
    assert threads.names == {"a user process named uvm"}


@pytest.mark.parametrize(
    "name",
    [
        *("UVM deferred re", "vidmem lazy fre", "vidmem lazy free", "nv_queue", "nv_open_q", "irq/42-nvidia"),
        *("irq/9-s-nvidia", "kswapd0", "kcompactd0", "UVM GPU12 KC", "UVM (odd) thread"),
    ],
)
def test_names_of_new_and_old_kernels(tree: Tree, name: str) -> None:
    tree.lay(7, name)
    assert shares(KernelThreads(tree.root), 1.0) == {name: 0.0}


@pytest.mark.parametrize(
    "name", ["kworker/0:1", "my UVM GPU1 BH", "nv_queue_of_mine", "irq/42-nvme", "rcu_sched"]
)
def test_names_of_others(tree: Tree, name: str) -> None:
    tree.lay(7, name)
    assert not shares(KernelThreads(tree.root), 1.0)


def test_a_user_process_of_that_name_is_none(tree: Tree) -> None:
    tree.lay(2, "kthreadd")
    tree.lay(7, "UVM GPU1 BH", 500, USER)
    threads = KernelThreads(tree.root)
    assert shares(threads, 1.0) == {}
    assert threads.names == {"UVM GPU1 BH"}


def test_hidden_kernel_threads_are_unknown(tree: Tree) -> None:
    """A container without the host's pids, or hidepid."""
    tree.lay(1, "python3", flags=USER)
    assert KernelThreads(tree.root).look(1.0) is None
    assert KernelThreads(tree.root / "nothing").look(1.0) is None


def test_threads_come_and_go_and_pids_are_used_again(tree: Tree) -> None:
    tree.lay(2, "kthreadd")
    tree.lay(7, "UVM GPU1 BH", 100)
    threads = KernelThreads(tree.root)
    assert shares(threads, 0.0) == {"UVM GPU1 BH": 0.0}
    tree.started[7] = 99_999
    tree.lay(7, "UVM GPU1 BH", 5)  # of another life of the module
    assert shares(threads, 1.0) == {}
    tree.lay(8, "UVM GPU2 BH")
    assert shares(threads, DEFAULTS.threads_scan_s / 2) == {}
    seen: dict[str, float] = {}
    for second in range(3):
        seen |= shares(threads, DEFAULTS.threads_scan_s + second)
    assert seen.keys() == {"UVM GPU1 BH", "UVM GPU2 BH"}


def test_while_memory_is_short_a_new_thread_is_found_sooner(tree: Tree) -> None:
    tree.lay(2, "kthreadd")
    threads = KernelThreads(tree.root)
    threads.look(0.0)
    tree.lay(970, "UVM GPU1 BH")
    assert shares(threads, DEFAULTS.threads_scan_short_s) == {}
    seen: dict[str, float] = {}
    for tenths in (0, 2, 4):
        seen |= shares(threads, DEFAULTS.threads_scan_short_s + tenths / 10, short=True)
    assert seen == {"UVM GPU1 BH": 0.0}


def test_a_long_scan_is_done_in_parts(tree: Tree) -> None:
    for pid in range(1, 500):
        tree.lay(pid, "kswapd0" if pid == 499 else f"user{pid}", flags=KTHREAD if pid == 499 else USER)
    threads = KernelThreads(tree.root)
    assert shares(threads, 0.0) == {"kswapd0": 0.0}  # the first one is whole
    for pid in range(500, 1000):
        tree.lay(pid, f"UVM GPU{pid} BH")
    found = [len(shares(threads, DEFAULTS.threads_scan_s + second)) for second in range(12)]
    assert found[0] <= found[-1]
    assert found[-1] == 501
    assert max(two - one for one, two in pairwise(found)) <= 128


def test_the_kernel_at_hand() -> None:
    threads = KernelThreads()
    first, second = threads.look(0.0), threads.look(1.0)
    threads.close()
    if first is not None and second is not None:
        assert [one.name for one in first] == [one.name for one in second]
        assert all(0.0 <= one.share <= 8.0 for one in second)
    assert threads.names
