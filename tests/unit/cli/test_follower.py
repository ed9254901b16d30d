from dataclasses import replace

from sparkd.cli.follower import Follower
from sparkd.records.status import DeploymentStatus, Progress, RankStatus, WaitingFor

NOW = 1_800_000_000.0


def rank(number: int, phase: str, percent: float | None = None, detail: str = "", rss: int = 0) -> RankStatus:
    return RankStatus(
        rank=number,
        node=f"local-{number + 1}",
        node_address="127.0.0.1",
        phase=phase,
        since=None,
        pid=1,
        progress=Progress(percent, detail, 0, rss),
    )


def loading(*ranks: RankStatus) -> DeploymentStatus:
    return DeploymentStatus(
        name="tiny",
        profile="tiny",
        intent="0" * 12,
        desired="up",
        phase="loading",
        reason="rank 0 reads its weights",
        generation=1,
        falls=0,
        since="2026-01-01T00:00:00Z",
        ranks=ranks,
    )


def said(follower: Follower, status: DeploymentStatus, elapsed: float) -> list[str]:
    return [line.split(" s  ", 1)[1] for line in follower.lines(status, elapsed, NOW + elapsed)]


def test_a_phase_is_said_once_with_its_reason_and_the_seconds_since_the_start() -> None:
    follower = Follower()
    assert follower.lines(loading(), 3.14, NOW) == [
        "    3.1 s  tiny loading (generation 1): rank 0 reads its weights"
    ]
    assert follower.lines(loading(), 4.0, NOW) == []


def test_a_new_reason_and_a_new_generation_are_said() -> None:
    follower = Follower()
    said(follower, loading(), 0)
    assert said(follower, replace(loading(), reason="rank 1 fell"), 1) == [
        "tiny loading (generation 1): rank 1 fell"
    ]
    assert said(follower, replace(loading(), reason="rank 1 fell", generation=2), 2) == [
        "tiny loading (generation 2): rank 1 fell"
    ]


def test_percent_is_said_at_each_step_of_ten() -> None:
    follower = Follower()
    said(follower, loading(rank(0, "loading", 0.0)), 0)
    steps = [
        percent
        for percent in range(1, 101)
        if said(follower, loading(rank(0, "loading", float(percent))), percent / 100)
    ]
    assert steps == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]


def test_a_silent_rank_that_grows_is_said_every_ten_seconds_and_no_oftener() -> None:
    follower = Follower()
    said(follower, loading(rank(0, "loading", rss=1)), 0)
    times = [
        second
        for second in range(1, 41)
        if said(follower, loading(rank(0, "loading", rss=second << 20)), second)
    ]
    assert times == [10, 20, 30, 40]


def test_a_rank_that_does_not_move_is_not_repeated() -> None:
    follower = Follower()
    still = loading(rank(0, "loading", 5.0, "weights"))
    assert len(said(follower, still, 0)) == 2
    assert said(follower, still, 60) == []


def test_a_rank_of_the_next_generation_begins_anew() -> None:
    follower = Follower()
    said(follower, loading(rank(0, "loading", 90.0)), 0)
    again = replace(loading(rank(0, "loading", 10.0)), generation=2)
    assert said(follower, again, 1)[1:] == ["rank 0 on local-1 loading  10 %"]


def test_what_is_waited_for_is_said_when_it_changes_but_not_in_a_stream() -> None:
    follower = Follower()
    since = "2027-01-15T08:00:00Z"  # NOW

    def waiting(for_rank: int) -> DeploymentStatus:
        return replace(loading(), waiting_for=WaitingFor("its weights", since, "the gang is ended", for_rank))

    assert said(follower, waiting(0), 5)[1:] == [
        "waiting for its weights (rank 0) for 5s, then the gang is ended"
    ]
    assert said(follower, waiting(1), 6) == []
    assert said(follower, waiting(1), 16) == [
        "waiting for its weights (rank 1) for 16s, then the gang is ended"
    ]
