"""Series of memory and pressure, as recorded or as a report tells them: what must be ended, what must not."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.detect.look import BusyThread, Counters, Look
from sparkd.detect.thrash import GRADES, Floor, Thrash, observe
from sparkd.records.defaults import DEFAULTS, GIB
from sparkd.records.memory import Memory

TOTAL = int(121.7 * GIB)
SERVING = Floor(4 * GIB, "serving")
LOADING = Floor(2 * GIB, "loading")
IDLE = (BusyThread("UVM GPU1 BH", 0.0), BusyThread("kswapd0", 0.01))
UVM = (BusyThread("UVM GPU1 BH", 0.85), BusyThread("kswapd0", 0.01))


SUMMED = ("some", "full", "stalls", "scanned", "freed", "refaults", "swapped", "compactions")


@dataclass(frozen=True)
class Node:
    """One second of a node. Rates are per second, shares of wall time; free None: all that is available."""

    available: float
    free: float | None = None
    full: float = 0.0
    some: float = 0.0
    stalls: float = 0.0
    scanned: float = 0.0
    freed: float = 0.0
    refaults: float = 0.0
    swapped: float = 0.0
    compactions: float = 0.0
    threads: tuple[BusyThread, ...] | None = IDLE
    lines: int = 0


def looks(nodes: Iterable[Node], step_s: float = 1.0) -> Iterator[Look]:
    at, sums = (
        1000.0,
        dict.fromkeys(SUMMED, 0.0),
    )
    for node in nodes:
        at += step_s
        for name in sums:
            sums[name] += getattr(node, name) * step_s
        yield Look(
            at,
            Memory(TOTAL, int(node.available * GIB), int((node.free or node.available) * GIB)),
            Counters(
                some_us=int(1e6 * max(sums["some"], sums["full"])),
                full_us=int(1e6 * sums["full"]),
                stalls=int(sums["stalls"]),
                direct_scanned=int(sums["scanned"]),
                direct_freed=int(sums["freed"]),
                refaults=int(sums["refaults"]),
                swapped=int(sums["swapped"]),
                oom_kills=0,
                compactions=int(sums["compactions"]),
            ),
            node.threads,
            node.lines,
        )


def watch(nodes: Iterable[Node], floor: Floor = SERVING, step_s: float = 1.0) -> list[Thrash]:
    thrash, seen = Thrash(), []
    for look in looks(nodes, step_s):
        thrash = observe(thrash, look, floor)
        seen.append(thrash)
    return seen


def worst(seen: list[Thrash]) -> str:
    return max((one.grade for one in seen), key=GRADES.index)


SIGNS = {
    "full": Node(1.5, full=0.3),
    "direct reclaim": Node(1.5, scanned=50_000, freed=4_000),
    "stalls": Node(1.5, stalls=200),
    "compaction": Node(1.5, compactions=50),
    "swap": Node(1.5, swapped=20_000),
    "refaults": Node(1.5, refaults=60_000),
    "UVM": Node(1.5, threads=UVM),
    "kswapd": Node(1.5, threads=(BusyThread("kswapd0", 0.97),)),
}


@pytest.mark.parametrize("node", SIGNS.values(), ids=SIGNS)
@pytest.mark.parametrize("step_s", [1.0, 0.2])
def test_low_memory_and_any_sign_of_trouble_ends_within_five_seconds(node: Node, step_s: float) -> None:
    before = [Node(30.0)] * round(10 / step_s)
    seen = watch([*before, *[node] * round(5 / step_s)], SERVING, step_s)[len(before) :]
    assert seen[-1].grade == "end"
    assert seen[0].grade in ("evict", "shed")
    assert "MemAvailable 1.5 GiB, floor 4.0 GiB (serving)" in seen[-1].reason


@pytest.mark.parametrize("node", SIGNS.values(), ids=SIGNS)
def test_the_same_trouble_with_plenty_available_ends_nothing(node: Node) -> None:
    assert worst(watch([replace(node, available=30.0)] * 60)) == "watch"


@pytest.mark.parametrize("node", SIGNS.values(), ids=SIGNS)
def test_trouble_of_a_second_ends_nothing(node: Node) -> None:
    """Below the floor it may be shed, but a moment is no thrash."""
    one = (
        [Node(30.0)] * 5
        + [Node(3.0)] * 3
        + [replace(node, available=3.0)]
        + [Node(3.0)] * 1
        + [Node(8.0)] * 20
    )
    # Rates are over a window, so what happened in one second is seen in the next few too: at 3 GiB for two.
    assert worst(watch(one)) == "shed"


def test_critical_alone_ends() -> None:
    seen = watch([*[Node(20.0)] * 5, Node(0.9), Node(0.8)])
    assert (seen[-1].grade, seen[-1].verdict) == ("end", "MEMORY_CRITICAL")
    assert "MemAvailable 0.8 GiB" in seen[-1].reason
    assert seen[-2].grade != "end"  # one look may have met a buffer that is freed again


def test_the_seeds_signature_is_named() -> None:
    seen = watch([*[Node(20.0)] * 5, *[Node(1.6, threads=UVM)] * 4])
    assert (seen[-1].grade, seen[-1].verdict) == ("end", "UVM_THRASH")
    assert "UVM GPU1 BH at 85 % of a core" in seen[-1].reason


def test_the_signature_holds_under_a_lower_floor_too() -> None:
    assert watch([Node(1.6, threads=UVM)] * 5, Floor(GIB, "loading"))[-1].verdict == "UVM_THRASH"


def test_free_alone_with_a_busy_uvm_thread_only_evicts() -> None:
    """What is available is there, the page cache holds it: dropping that is the remedy."""
    seen = watch([Node(40.0, free=1.0, threads=UVM)] * 30)
    assert (worst(seen), seen[-1].verdict) == ("evict", "UVM_THRASH")


def test_a_user_of_uvm_with_free_memory_is_none_of_our_business() -> None:
    """Managed memory that is faulted back and forth: measured at 45 % of a core, here at 85 %."""
    assert worst(watch([Node(60.0, threads=UVM)] * 60)) == "watch"


def test_hidden_kernel_threads_are_unknown_and_never_required() -> None:
    node = replace(SIGNS["full"], threads=None)
    assert watch([node] * 6)[-1].grade == "end"


# Group A of the public reports -------------------------------------------------------------------------


def test_case_2_nvrm_lines_end_at_once() -> None:
    quiet = Node(900_000 / 1024 / 1024)
    seen = watch([Node(12.0), replace(quiet, lines=40)])
    assert (seen[-1].grade, seen[-1].verdict) == ("end", "HOST_WEDGE_NVRM")
    assert "40 kernel lines of NV_ERR_NO_MEMORY" in seen[-1].reason


@pytest.mark.parametrize(("lines", "grade"), [(1, "shed"), (40, "end")])
def test_nvrm_lines_with_much_available(lines: int, grade: str) -> None:
    """One line comes from a failed try of an allocator that tries again with less (playbooks#97)."""
    assert watch([Node(40.0), Node(40.0, lines=lines)])[-1].grade == grade


def test_nvrm_lines_end_when_meminfo_cannot_be_read() -> None:
    thrash = observe(Thrash(), Look(1.0, None, no_memory_lines=40), SERVING)
    assert (thrash.grade, "MemAvailable unknown" in thrash.reason) == ("end", True)


def test_case_6_a_flat_load_at_six_gib_goes_on() -> None:
    series = [7488, 7463, 7281, 6761, 6018, *[6010, 6005] * 60]
    seen = watch([Node(mib / 1024) for mib in series for _ in range(5)], LOADING)
    assert worst(seen) == "watch"
    # The floor that the report speaks of: it sheds and says why, and ends nothing.
    seen = watch([Node(mib / 1024) for mib in series for _ in range(5)], Floor(6 * GIB, "loading"))
    assert (worst(seen), seen[-1].verdict) == ("shed", "MEMORY_LOW")
    assert "floor 6.0 GiB (loading)" in seen[-1].reason


def test_case_5_the_drop_after_loading_is_calm() -> None:
    assert worst(watch([Node(one) for one in (40, 39, 38, 31, 25, 21, *[20.5] * 60)], LOADING)) == "calm"


@pytest.mark.parametrize(
    ("node", "seconds"),
    [
        pytest.param(Node(18.0), 540, id="a silent load of nine minutes"),
        pytest.param(Node(14.0, free=9.0, some=0.02), 120, id="a long prefill"),
        pytest.param(
            Node(60.0, free=1.0, refaults=30_000, threads=(BusyThread("kswapd0", 0.3),)),
            300,
            id="loading by mmap through a warm page cache",
        ),
        pytest.param(Node(90.0, free=1.0), 300, id="a warm page cache with 1 GiB MemFree"),
        pytest.param(Node(6.0, free=1.0), 300, id="a flat 6 GiB"),
    ],
)
def test_no_alarm(node: Node, seconds: int) -> None:
    assert worst(watch([node] * seconds)) in ("calm", "watch")


# How it moves ------------------------------------------------------------------------------------------


def test_a_grade_falls_only_after_ten_seconds_well_above_the_floor() -> None:
    low = [Node(3.0)] * 4
    seen = watch([*low, *[Node(5.0)] * 40])  # above the floor, but not by 2 GiB
    assert (seen[3].grade, seen[-1].grade) == ("shed", "shed")
    seen = watch([*low, *[Node(30.0)] * 9])
    assert seen[-1].grade == "shed"
    assert watch([*low, *[Node(30.0)] * 12])[-1].grade == "calm"


def test_up_and_down_around_the_floor_does_not_flap() -> None:
    seen = watch([Node(3.0 if second % 6 < 3 else 9.0) for second in range(120)])
    changes = sum(one.grade != two.grade for one, two in pairwise(seen))
    assert changes <= 2


def test_the_first_reason_stays() -> None:
    seen = watch([*[Node(3.0)] * 4, *[Node(3.5)] * 4])
    assert seen[-1].reason == seen[3].reason
    assert "MemAvailable 3.0 GiB" in seen[-1].reason


def test_time_in_which_the_agent_stood_still_counts_little() -> None:
    """Two looks a minute apart are no minute of thrash."""
    one, two = looks([Node(3.0, full=0.5)] * 2, 60.0)
    assert observe(observe(Thrash(), one, SERVING), two, SERVING).grade == "shed"


nodes = st.builds(
    Node,
    available=st.floats(0.1, 120),
    free=st.one_of(st.none(), st.floats(0.1, 20)),
    full=st.floats(0, 1),
    stalls=st.floats(0, 1000),
    scanned=st.floats(0, 1e6),
    freed=st.floats(0, 1e6),
    refaults=st.floats(0, 1e6),
    threads=st.sampled_from([None, IDLE, UVM, (BusyThread("kswapd0", 1.0),)]),
)


@given(st.lists(nodes, max_size=40), st.floats(0.5, 20))
def test_above_the_floor_and_two_gib_without_nvrm_nothing_is_ended(series: list[Node], floor: float) -> None:
    bound = max(floor, DEFAULTS.signature_free_bytes / GIB)
    series = [replace(node, available=max(node.available, bound)) for node in series]
    assert worst(watch([Node(50.0), *series], Floor(int(floor * GIB), "serving"))) not in ("shed", "end")


@given(st.lists(nodes, min_size=1, max_size=40), st.lists(nodes, max_size=5))
def test_two_looks_under_the_critical_line_always_end(series: list[Node], after: list[Node]) -> None:
    low = [Node(0.9), Node(0.9)]
    assert worst(watch([*series, *low, *after])) == "end"


@given(st.lists(nodes, min_size=1, max_size=60))
def test_what_is_kept_is_bounded(series: list[Node]) -> None:
    last = watch(series, step_s=DEFAULTS.watch_fast_s)[-1]
    bound = DEFAULTS.watch_window_s / DEFAULTS.watch_fast_s + 2
    assert len(last.looks) <= bound
    assert len(last.troubled) <= bound
