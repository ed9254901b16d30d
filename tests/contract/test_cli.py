"""The command line as a process of its own, against a coordinator that says what the test wants."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bed.fake_coordinator import Answer, FakeCoordinator, problem

PROFILE = """\
schema: sparkd/v1
name: small
model: {path: /models/small}
layout: {tp: 2}
engine: {vllm: ">=0.24"}
"""


@pytest.fixture
def coordinator() -> Iterator[FakeCoordinator]:
    with FakeCoordinator() as fake:
        yield fake


@pytest.fixture
def home(tmp_path: Path, coordinator: FakeCoordinator) -> Path:
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text(coordinator.token)
    (tmp_path / "small.yaml").write_text(PROFILE)
    return tmp_path


def environment(home: Path, url: str | None) -> dict[str, str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("SPARKD_", "XDG_"))}
    env |= {
        "HOME": str(home),
        "XDG_STATE_HOME": str(home / "state"),
        "SPARKD_CONFIG_DIR": str(home / "config"),
        "SPARKD_TOKEN_FILE": str(home / "token"),
    }
    return env | ({"SPARKD_COORDINATOR": url} if url else {})


def sparkd(home: Path, url: str | None, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "sparkd", *words],
        env=environment(home, url),
        cwd=home,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def deployment(phase: str, **more: Any) -> dict[str, Any]:
    return {
        "name": "small",
        "profile": "small",
        "intent": "0" * 12,
        "desired": "up",
        "phase": phase,
        "reason": f"because {phase}",
        "generation": 1,
        "falls": 0,
        "since": "2026-01-01T00:00:00Z",
    } | more


def answer(outcome: str, phase: str) -> dict[str, Any]:
    return {"deployment": deployment(phase), "outcome": outcome, "recorded_on": 2, "nodes": 2}


READY = deployment("ready", endpoint={"base_url": "http://127.0.0.1:8100/v1", "models": ["small"]})
PATH = "/v1/deployments/small"


def test_status_says_who_was_asked(home: Path, coordinator: FakeCoordinator) -> None:
    coordinator.on("GET", "/v1/status", {"deployments": [READY], "nodes": []})
    run = sparkd(home, coordinator.url, "status")
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith(f"coordinator {coordinator.url} (SPARKD_COORDINATOR)\n")
    assert "\x1b" not in run.stdout


def test_status_as_json_is_what_the_api_answers(home: Path, coordinator: FakeCoordinator) -> None:
    coordinator.on("GET", "/v1/status", {"deployments": [READY], "nodes": []})
    whole = json.loads(sparkd(home, coordinator.url, "status", "-o", "json").stdout)
    assert whole["deployments"][0]["endpoint"]["base_url"] == "http://127.0.0.1:8100/v1"
    one = json.loads(sparkd(home, coordinator.url, "status", "small", "-o", "json").stdout)
    assert one == whole["deployments"][0]


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["stats"], 2, "Did you mean 'status'"),
        (["status", "--bogus"], 2, "No such option: --bogus; see `sparkd status --help`"),
        (["status", "other"], 1, "no deployment other; there are: small"),
        (["down"], 2, "name the deployments to stop"),
        (["up", "small.yaml", "extra"], 2, "unexpected 'extra'"),
        (["up", "./small.yaml", "--local", "0"], 2, "--local 0"),
        (["up", "./small.yaml", "--name", "No Such"], 2, "cannot name a deployment"),
        (["up", "./small.yaml", "--set", "layout.tq=3"], 2, "layout.tq"),
        (["logs", "small", "--since", "yesterday"], 2, "--since yesterday"),
        (["explain", "small/x"], 2, "NAME/GENERATION"),
    ],
)
def test_errors_are_one_line_with_the_designs_exit_code(
    home: Path, coordinator: FakeCoordinator, words: list[str], code: int, text: str
) -> None:
    coordinator.on("GET", "/v1/status", {"deployments": [READY], "nodes": []})
    run = sparkd(home, coordinator.url, *words)
    assert (run.returncode, run.stdout) == (code, "")
    assert text in run.stderr
    assert len(run.stderr.splitlines()) == 1
    assert run.stderr.startswith("sparkd: ")


def test_no_coordinator_is_exit_3_and_says_what_to_do(home: Path) -> None:
    run = sparkd(home, "http://127.0.0.1:1", "status")
    assert run.returncode == 3
    assert "nothing listens there; that address came from SPARKD_COORDINATOR" in run.stderr


def test_a_traceback_comes_only_with_debug(home: Path) -> None:
    assert "Traceback" not in sparkd(home, "http://127.0.0.1:1", "status").stderr
    assert "Traceback" in sparkd(home, "http://127.0.0.1:1", "status", "--debug").stderr


def test_a_wrong_token_is_exit_3_and_names_its_file(home: Path, coordinator: FakeCoordinator) -> None:
    (home / "token").write_text("wrong")
    run = sparkd(home, coordinator.url, "status")
    assert run.returncode == 3
    assert str(home / "token") in run.stderr


def test_up_follows_until_ready(home: Path, coordinator: FakeCoordinator) -> None:
    coordinator.on("PUT", PATH, Answer(answer("created", "pending"), 201))
    coordinator.on("GET", PATH, deployment("launching"), deployment("loading"), READY)
    run = sparkd(home, coordinator.url, "up", "./small.yaml", "--variant", "x")
    assert run.returncode == 2  # no such variant: nothing was asked
    assert coordinator.asked == []
    run = sparkd(home, coordinator.url, "up", "./small.yaml", "--", "--max-num-seqs", "8")
    assert (run.returncode, run.stderr) == (0, "")
    told = [line.partition(" s  ")[2] for line in run.stdout.splitlines()[:4]]
    assert told == [
        "small is new, recorded on 2 of 2 nodes",
        "small launching (generation 1): because launching",
        "small loading (generation 1): because loading",
        "small ready (generation 1): because ready",
    ]
    assert "curl http://127.0.0.1:8100/v1/chat/completions" in run.stdout
    intent = coordinator.asked[0].body["intent"]
    assert intent["engine_args"] == ["--max-num-seqs", "8"]
    assert intent["profile"]["layout"]["tp"] == 2


def test_up_of_what_runs_is_done_at_once(home: Path, coordinator: FakeCoordinator) -> None:
    coordinator.on("PUT", PATH, answer("running", "ready"))
    coordinator.on("GET", PATH, READY)
    run = sparkd(home, coordinator.url, "up", "./small.yaml", "-o", "json")
    assert run.returncode == 0
    assert json.loads(run.stdout)["phase"] == "ready"
    assert [one.method for one in coordinator.asked] == ["PUT", "GET"]


def test_up_of_something_else_shows_the_difference(home: Path, coordinator: FakeCoordinator) -> None:
    coordinator.on(
        "PUT", PATH, problem("intent-differs", 409, "small runs otherwise", differences=["layout.tp: 4 -> 2"])
    )
    run = sparkd(home, coordinator.url, "up", "./small.yaml")
    assert run.returncode == 1
    assert run.stderr.splitlines()[:2] == ["sparkd: small runs otherwise", "  layout.tp: 4 -> 2"]
    assert "sparkd down small" in run.stderr


def test_a_failed_up_is_exit_1_with_the_rank_that_fell(home: Path, coordinator: FakeCoordinator) -> None:
    coordinator.on("PUT", PATH, answer("created", "pending"))
    fall = {
        "generation": 1,
        "rank": 1,
        "node": "local-2",
        "reason": "its worker ended",
        "at": "2026-01-01T00:00:00Z",
        "exit": {"code": None, "signal": 9, "how": "pidfd"},
        "lines": ["CUDA out of memory"],
    }
    coordinator.on("GET", PATH, deployment("failed", last_fall=fall))
    run = sparkd(home, coordinator.url, "up", "./small.yaml")
    assert run.returncode == 1
    assert "first failing rank: 1 on local-2, signal 9 (pidfd): its worker ended" in run.stdout
    assert "| CUDA out of memory" in run.stdout


def test_up_that_takes_too_long_is_exit_4_and_goes_on(home: Path, coordinator: FakeCoordinator) -> None:
    coordinator.on("PUT", PATH, answer("created", "pending"))
    coordinator.on("GET", PATH, deployment("loading"))
    run = sparkd(home, coordinator.url, "up", "./small.yaml", "--timeout", "0.5")
    assert run.returncode == 4
    assert "loading: because loading" in run.stderr
    assert all(one.method != "DELETE" for one in coordinator.asked)


def test_a_coordinator_that_starts_is_waited_for(home: Path, coordinator: FakeCoordinator) -> None:
    coordinator.on("PUT", PATH, problem("starting", 503, "waiting for agents"), answer("created", "pending"))
    coordinator.on("GET", PATH, problem("starting", 503, "waiting for agents"), READY)
    run = sparkd(home, coordinator.url, "up", "./small.yaml")
    assert run.returncode == 0
    assert run.stdout.count("waiting for agents; asking again") == 2


def test_ctrl_c_leaves_the_deployment_and_says_how_to_go_on(home: Path, coordinator: FakeCoordinator) -> None:
    coordinator.on("PUT", PATH, answer("created", "pending"))
    coordinator.on("GET", PATH, deployment("loading"))
    up = subprocess.Popen(
        [sys.executable, "-m", "sparkd", "up", "./small.yaml"],
        env=environment(home, coordinator.url),
        cwd=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until = time.monotonic() + 30
        while sum(one.method == "GET" for one in coordinator.asked) < 2:
            assert time.monotonic() < until
            time.sleep(0.02)
        up.send_signal(signal.SIGINT)
        out, err = up.communicate(timeout=30)
    finally:
        up.kill()
        up.wait()
    assert (up.returncode, err) == (130, "")
    assert "goes on without this terminal" in out
    assert "sparkd down small" in out
    assert all(one.method != "DELETE" for one in coordinator.asked)


def test_down_waits_and_shows_what_for(home: Path, coordinator: FakeCoordinator) -> None:
    stopping = deployment(
        "stopping",
        desired="down",
        waiting_for={"what": "its ranks to end", "since": "2026-01-01T00:00:00Z", "then": "they are killed"},
    )
    coordinator.on("DELETE", PATH, answer("stopping", "stopping"))
    coordinator.on("GET", PATH, stopping, deployment("stopped", desired="down", left_on=["spark-2"]))
    run = sparkd(home, coordinator.url, "down", "small")
    assert run.returncode == 0
    assert "waiting for its ranks to end" in run.stdout
    assert run.stdout.splitlines()[-1] == "small is stopped, not proved on spark-2: seen to when it is back"


def test_down_twice_is_fine(home: Path, coordinator: FakeCoordinator) -> None:
    coordinator.on("DELETE", PATH, answer("stopped", "stopped"))
    for _ in range(2):
        run = sparkd(home, coordinator.url, "down", "small")
        assert (run.returncode, run.stdout) == (0, "small is stopped\n")


def test_down_of_an_unknown_name_is_exit_1(home: Path, coordinator: FakeCoordinator) -> None:
    run = sparkd(home, coordinator.url, "down", "other")
    assert run.returncode == 1


def test_restart_names_the_generation_it_saw_and_waits_for_a_newer_one(
    home: Path, coordinator: FakeCoordinator
) -> None:
    coordinator.on("GET", PATH, READY, READY, READY | {"generation": 2})
    coordinator.on("POST", f"{PATH}/restart", answer("restarting", "recovering"))
    run = sparkd(home, coordinator.url, "restart", "small", "-o", "json")
    assert run.returncode == 0
    assert json.loads(run.stdout)["generation"] == 2
    assert next(one.body for one in coordinator.asked if one.method == "POST") == {"generation": 1}


def test_logs_and_events_are_lines(home: Path, coordinator: FakeCoordinator) -> None:
    line = {"rank": 1, "at": 1767225600.5, "stream": "err", "text": "hello \u2713"}
    log = b"".join(json.dumps(line).encode() + b"\n" for _ in range(2))
    coordinator.on("GET", f"{PATH}/logs", Answer(log, kind="application/x-ndjson"))
    coordinator.on("GET", PATH, deployment("ready", generation=3))
    run = sparkd(home, coordinator.url, "logs", "small", "--previous", "--rank", "1")
    assert run.returncode == 0
    assert [text.partition(" 1 ! ")[2] for text in run.stdout.splitlines()] == ["hello \u2713"] * 2
    assert coordinator.asked[-1].target == f"{PATH}/logs?rank=1&generation=2"
    event = {
        "id": "1-1",
        "at": 1767225600.0,
        "kind": "phase",
        "reason": "why",
        "from": "loading",
        "to": "ready",
    }
    coordinator.on("GET", "/v1/events", [event])
    run = sparkd(home, coordinator.url, "events", "-o", "json")
    assert json.loads(run.stdout) == event | dict.fromkeys(("deployment", "generation", "node", "rank"))


def test_nodes_show_what_an_agent_may_not_do(home: Path, coordinator: FakeCoordinator) -> None:
    limits = [
        "it cannot end processes of other users (no CAP_KILL): run it as root",
        "its ranks are no units of systemd, for which it must be root: run it as root",
    ]
    node = {
        "id": "1f",
        "name": "spark-2",
        "state": "alive",
        "addresses": ["192.0.2.2"],
        "runtimes": ["process"],
        "privileges": ["kill"],
        "limits": limits,
    }
    coordinator.on("GET", "/v1/nodes", [node])
    listed = sparkd(home, coordinator.url, "nodes", "list").stdout
    assert "spark-2's agent cannot do 2 things: sparkd nodes show spark-2" in listed
    shown = sparkd(home, coordinator.url, "nodes", "show", "spark-2").stdout.splitlines()
    assert "runs ranks by  process" in shown
    assert "privileges     kill" in shown
    at = shown.index(f"cannot         {limits[0].removeprefix('it cannot ')}")
    assert shown[at + 1].strip() == limits[1]
    said = json.loads(sparkd(home, coordinator.url, "nodes", "show", "spark-2", "-o", "json").stdout)
    assert {key: said[key] for key in node} == node


def test_explain_shows_incidents(home: Path, coordinator: FakeCoordinator) -> None:
    fall = {"generation": 2, "rank": 1, "node": "local-2", "reason": "its worker ended", "wall": 1767225600.0}
    coordinator.on("GET", "/v1/status", {"deployments": [READY], "nodes": []})
    coordinator.on("GET", f"{PATH}/incidents", [{"at": 1.0, "generation": 2, "fall": fall, "verdicts": []}])
    run = sparkd(home, coordinator.url, "explain", "small")
    assert run.returncode == 0
    assert "rank 1 on local-2, exit status unknown: its worker ended" in run.stdout
    assert sparkd(home, coordinator.url, "explain", "small/3").returncode == 1


def test_explain_of_what_is_loading(home: Path, coordinator: FakeCoordinator) -> None:
    waiting = {
        "what": "rank 1 to load",
        "since": "2026-01-01T00:00:00Z",
        "then": "the gang is ended",
        "rank": 1,
        "node": "local-2",
        "last_progress": "2026-01-01T00:01:00Z",
        "deadline": "2126-01-01T00:00:00Z",
    }
    progress = {"percent": None, "detail": "loading", "read_bytes": 0, "rss_bytes": 0}
    rank = {"rank": 1, "node": "local-2", "node_address": "", "phase": "loading", "since": None, "pid": 7}
    loading = {
        **READY,
        "phase": "loading",
        "waiting_for": waiting,
        "ranks": [{**rank, "progress": progress}],
    }
    coordinator.on("GET", "/v1/status", {"deployments": [loading], "nodes": []})
    coordinator.on("GET", f"{PATH}/incidents", [])
    told = {
        "id": "1-7",
        "at": 1767225600.0,
        "deployment": "small",
        "kind": "fall",
        "reason": "its worker ended",
    }
    coordinator.on("GET", "/v1/events", [told])
    lines = ["Thread 0x1 (most recent call first):"] + ['  File "load.py", line 7 in read'] * 20
    process = {"pid": 7, "title": "VLLM::Worker_TP1", "lines": lines}
    coordinator.on("GET", f"{PATH}/stacks", [{"rank": 1, "node": "local-2", "processes": [process]}])
    shown = sparkd(home, coordinator.url, "explain", "small").stdout
    assert "waiting for rank 1 to load" in shown
    assert "ago  fall: its worker ended" in shown
    assert "rank 1 on local-2" in shown
    assert "VLLM::Worker_TP1 (pid 7)" in shown
    assert 'File "load.py", line 7 in read' in shown
    assert "9 lines more: sparkd stacks small --rank 1" in shown
    as_json = json.loads(sparkd(home, coordinator.url, "explain", "small", "-o", "json").stdout)
    assert [one["kind"] for one in as_json["tried"]] == ["fall"]
    assert as_json["stacks"][0]["processes"][0]["lines"] == lines
    assert "last progress" in shown
    assert ": the gang is ended" in shown
    assert "sparkd stacks small --rank 1" in shown


def test_a_reader_that_has_enough_is_no_error(home: Path, coordinator: FakeCoordinator) -> None:
    line = json.dumps({"rank": 0, "at": 1.0, "stream": "out", "text": "x" * 100}).encode() + b"\n"
    coordinator.on("GET", f"{PATH}/logs", Answer(line * 20_000, kind="application/x-ndjson"))
    logs = subprocess.Popen(
        [sys.executable, "-m", "sparkd", "logs", "small"],
        env=environment(home, coordinator.url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert logs.stdout is not None
    assert logs.stderr is not None
    logs.stdout.readline()
    logs.stdout.close()
    err = logs.stderr.read()
    logs.stderr.close()
    assert (logs.wait(60), err) == (0, b"")


def test_an_answer_that_breaks_off_is_a_lost_coordinator(home: Path, coordinator: FakeCoordinator) -> None:
    coordinator.on("GET", "/v1/status", Answer({"deployments": [], "nodes": []}, breaks_off=True))
    assert sparkd(home, coordinator.url, "status").returncode == 3


def test_on_a_terminal_ranks_have_bars(home: Path, coordinator: FakeCoordinator) -> None:
    coordinator.on("PUT", PATH, answer("created", "pending"))
    ranks = [
        {
            "rank": number,
            "node": f"local-{number + 1}",
            "node_address": "127.0.0.1",
            "phase": "loading",
            "since": None,
            "pid": 1,
            "progress": {
                "percent": percent,
                "detail": "reading [weights]",
                "read_bytes": 1,
                "rss_bytes": 1 << 30,
            },
        }
        for number, percent in ((0, 40.0), (1, None))
    ]
    waiting = {"what": "the weights", "since": "2026-01-01T00:00:00Z", "then": "the gang is ended"}
    loading = deployment("loading", ranks=ranks, waiting_for=waiting)
    coordinator.on("GET", PATH, *[loading] * 4, READY)
    ours, theirs = pty.openpty()
    try:
        up = subprocess.Popen(
            [sys.executable, "-m", "sparkd", "up", "./small.yaml"],
            env=environment(home, coordinator.url) | {"TERM": "xterm", "COLUMNS": "120"},
            cwd=home,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # EIO: the other end has closed
            while piece := os.read(ours, 65536):
                shown += piece
        assert up.wait(60) == 0
    finally:
        os.close(ours)
    text = shown.decode()
    for part in ("rank 0", "local-2", "40 %", "reading [weights]", "waiting for the weights", "curl http://"):
        assert part in text
