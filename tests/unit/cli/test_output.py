from dataclasses import replace

import pytest

from sparkd.cli import output
from sparkd.contact import Contact
from sparkd.records.memory import Memory
from sparkd.records.status import (
    DeploymentStatus,
    Endpoint,
    ExitStatus,
    FallStatus,
    NodeStatus,
    Progress,
    RankStatus,
    Status,
    WaitingFor,
)
from sparkd.records.verdict import Severity, Verdict

NOW = 1_800_000_000.0
READY = DeploymentStatus(
    name="tiny",
    profile="tiny",
    intent="0" * 12,
    desired="up",
    phase="ready",
    reason="the canary was answered",
    generation=2,
    falls=1,
    since="2027-01-15T07:58:00Z",
    endpoint=Endpoint("http://127.0.0.1:8100/v1", ("tiny", "org/tiny")),
    proof_age_s=3.2,
    proof_bound_s=35.0,
    ranks=(
        RankStatus(
            0, "local-1", "127.0.0.1", "serving", "2027-01-15T07:59:00Z", 812, Progress(None, "", 0, 3 << 29)
        ),
        RankStatus(
            1,
            "local-2",
            "127.0.0.1",
            "gone",
            None,
            None,
            Progress(None, "", 0, 0),
            ExitStatus(None, 9, "shim"),
        ),
    ),
)


def contact(tmp_path: object) -> Contact:
    return Contact("http://127.0.0.1:4711", "local set", tmp_path, is_local=True)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (3 << 29, "1.5 GiB"),
        (121 << 30, "121 GiB"),
        (None, "?"),
    ],
)
def test_sizes(count: int | None, text: str) -> None:
    assert output.size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0s"),
        (59.4, "59s"),
        (59.6, "1m00s"),
        (3599, "59m59s"),
        (3600, "1h00m"),
        (86400 * 3 + 7200, "3d02h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert output.duration(seconds) == text


def test_columns_are_aligned_and_end_without_spaces() -> None:
    assert output.table([("a", "bbb"), ("cccc", "d")]) == ["a     bbb", "cccc  d"]


def test_colour_does_not_move_columns() -> None:
    coloured = output.table([("ready", "x"), ("failed!", "y")], output.paint)
    assert coloured[0].endswith("\x1b[0m  x")
    assert "ready  " in coloured[0]


def test_status_says_which_coordinator_and_shows_proof_ranks_and_nodes(tmp_path: object) -> None:
    node = NodeStatus("n1", "local-1", "alive", ("127.0.0.1",), Memory(16 << 30, 12 << 30, 1 << 30))
    lines = output.status_lines(Status((READY,), (node,)), contact(tmp_path), NOW)
    assert lines == [
        "coordinator http://127.0.0.1:4711 (local set)",
        "",
        "tiny  ready  for 2m00s  generation 2  1 fall",
        "  the canary was answered",
        "  http://127.0.0.1:8100/v1  model tiny, org/tiny  proved 3 s ago (bound 35 s)",
        "  rank 0  local-1  127.0.0.1  serving  1m00s  pid 812  1.5 GiB resident",
        "  rank 1  local-2  127.0.0.1  gone     -               signal 9 (shim)",
        "",
        "NODE     STATE  ADDRESSES  MEMORY AVAILABLE",
        "local-1  alive  127.0.0.1  12.0 GiB of 16.0 GiB",
    ]


def test_an_endpoint_of_something_not_ready_is_not_offered() -> None:
    starting = replace(READY, phase="loading")
    assert not any("8100" in line for line in output.deployment_lines(starting, NOW))


def test_a_failure_names_rank_status_lines_verdicts_and_what_to_do() -> None:
    failed = replace(
        READY,
        phase="failed",
        reason="rank 1 fell 3 times",
        last_fall=FallStatus(
            3,
            1,
            "local-2",
            "the worker ended",
            "",
            ExitStatus(None, 9, "pidfd"),
            ("CUDA error: 700",),
            None,
            "reboot",
        ),
        verdicts=(Verdict("PORT_IN_USE", Severity.BLOCK, "port taken", remedy="end pid 12", node="spark-1"),),
    )
    assert output.failure_lines(failed) == [
        "tiny: failed: rank 1 fell 3 times",
        "  first failing rank: 1 on local-2, signal 9 (pidfd): the worker ended (generation 3)",
        "    | CUDA error: 700",
        "  do: reboot",
        "  block PORT_IN_USE on spark-1: port taken",
        "    do: end pid 12",
        "  its log: sparkd logs tiny; once cured, `sparkd up` starts it again",
    ]


def test_an_unknown_exit_status_is_never_guessed() -> None:
    assert output.exit_text(ExitStatus(None, None, "unknown")) == "exit status unknown"
    assert output.exit_text(ExitStatus(0, None, "log")) == "exit code 0 (log)"


def test_the_example_request_carries_a_key_only_where_one_is_needed() -> None:
    assert "Authorization" not in "".join(output.endpoint_lines(READY))
    endpoint = Endpoint("http://spark-1:8100/v1", ("tiny",), "/var/lib/sparkd/keys/tiny")
    assert "$(sparkd key tiny)" in output.endpoint_lines(replace(READY, endpoint=endpoint))[1]


def test_what_is_waited_for_is_not_named_twice() -> None:
    waiting = WaitingFor(
        "rank 0 to be started by local-1", "2027-01-15T07:59:50Z", "it is started anew", 0, "local-1"
    )
    assert output.waiting_text(waiting, NOW) == (
        "waiting for rank 0 to be started by local-1 for 10s, then it is started anew"
    )
    assert output.waiting_text(replace(waiting, what="its weights", since=""), NOW) == (
        "waiting for its weights (rank 0) on local-1, then it is started anew"
    )


def test_a_rank_that_is_gone_makes_no_progress() -> None:
    rank = replace(READY.ranks[0], progress=Progress(40.0, "loading", 1, 1 << 30))
    assert output.progress_text(rank) == "40 %  loading  1.0 GiB resident"
    assert output.progress_text(replace(rank, phase="gone")) == ""


def test_a_list_of_nodes_says_whose_agent_cannot_do_everything() -> None:
    able = NodeStatus("n1", "a", "alive", ())
    nodes = (able, replace(able, name="b", limits=("x",)), replace(able, name="c", limits=("x", "y")))
    assert output.limit_lines(nodes) == [
        "  b's agent cannot do one thing: sparkd nodes show b",
        "  c's agent cannot do 2 things: sparkd nodes show c",
    ]
