"""How collective probes look in a terminal."""

import pytest

from sparkd.cli.sums import Progress, lines_of, parse_size
from sparkd.errors import UsageError
from sparkd.records.collective import CollectiveRank, CollectiveTest, Stage, Step


def of(*stages: Stage, **more: object) -> CollectiveTest:
    ranks = tuple(CollectiveRank(number, f"spark-{number + 1}", stage) for number, stage in enumerate(stages))
    return CollectiveTest(ranks, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "size"),
    [("8", 8), ("64M", 64 << 20), ("1g", 1 << 30), ("16 GiB", 16 << 30), ("256MB", 256 << 20), ("4K", 4096)],
)
def test_a_size(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "M", "1.5G", "-1", "1T", "1 G B"])
def test_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="no size"):
        parse_size(text)


def test_progress_is_told_when_something_changed() -> None:
    said: list[str] = []
    progress = Progress(said.append)
    waits = of("met", "imported", reason="rank 1 on spark-2 to reach the rendezvous")
    for test in (waits, waits, of("done", "done", over=True, reason="all ranks summed up")):
        progress.note(test)
    assert said == [
        "spark-1, spark-2: waiting for rank 1 on spark-2 to reach the rendezvous",
        "spark-1, spark-2: all ranks summed up",
    ]
    assert [test.passed for test in progress.over] == [True]


def test_a_ladder_and_what_the_link_should_give() -> None:
    steps = (Step(8, 42e-6), Step(64 << 20, 0.0036))
    test = of(
        "done", "done",
        over=True, backend="nccl", transport="rdma", steps=steps, link_mbit=200_000.0, took_s=9.2,
        reason="all ranks summed up",
    )  # fmt: skip
    assert lines_of(test) == [
        "spark-1, spark-2: passed, all ranks summed up (nccl over rdma), 9 s",
        "  SUM OF    TAKES   EACH WAY",
        "  8 B       42 us   0.00152 Gb/s",
        "  64.0 MiB  3.6 ms  149 Gb/s",
        "  the links should carry 200 Gb/s each way: 75 % of that",
    ]


def test_how_far_each_rank_came() -> None:
    test = of("met", "imported", over=True, took_s=14.0, reason="not all ranks were done within 14 s")
    assert lines_of(test) == [
        "spark-1, spark-2: failed, not all ranks were done within 14 s, 14 s",
        "  rank 0  spark-1  met",
        "  rank 1  spark-2  imported",
    ]
