"""`sparkd profiles` and `sparkd plan` as processes of their own: what needs no daemon, and what asks one."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sparkd.local_facts import local_node_facts
from sparkd.profile.lookup import builtin_profiles, load_profile
from sparkd.profile.merge import resolve
from sparkd.profile.plan import build_plan
from sparkd.profile.schema import schema_text
from sparkd.records.verdict import Severity, Verdict
from tests.bed.fake_coordinator import FakeCoordinator

AWKWARD = "/models/sp ace/'quo\"te'/$HOME/`id`/new\nline/ünï"


def sparkd(home: Path, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    env = {key: value for key, value in os.environ.items() if not key.startswith(("SPARKD_", "XDG_"))}
    env |= {"HOME": str(home), "XDG_STATE_HOME": str(home / "state"), **variables}
    return subprocess.run(
        [sys.executable, "-m", "sparkd", *words],
        env=env, cwd=home, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_a_local_plan_needs_no_daemon_no_engine_and_no_model(tmp_path: Path) -> None:
    done = sparkd(
        tmp_path, "plan", "tiny", "--local", "2", SPARKD_ENGINE="/opt/vllm", SPARKD_MODELS="/srv/models"
    )
    assert done.returncode == 0, done.stderr
    golden = builtin_profiles().parent / "tests" / "plans" / "tiny.txt"
    assert done.stdout == golden.read_text()
    assert list(tmp_path.iterdir()) == []


def test_an_awkward_model_path_is_one_word_of_argv(tmp_path: Path) -> None:
    profile = tmp_path / "p.yaml"
    profile.write_text(
        f"schema: sparkd/v1\nname: p\nmodel: {{path: {json.dumps(AWKWARD)}}}\nlayout: {{tp: 2}}\n"
    )
    done = sparkd(
        tmp_path, "plan", "./p.yaml", "--local", "2", "-o", "json", "--", "--chat-template={{ 'é' }}\n"
    )
    assert done.returncode == 0, done.stderr
    for rank in json.loads(done.stdout)["ranks"]:
        # What a process started with this argv finds in its own command line.
        echo = [sys.executable, "-c", "import sys; sys.stdout.write(open('/proc/self/cmdline').read())"]
        argv = [*echo, *rank["argv"][len(rank["command"]) :]]
        seen = subprocess.run(argv, capture_output=True, check=True).stdout.split(b"\0")
        assert seen[4] == AWKWARD.encode()
        assert seen[-2] == "{{ 'é' }}\n".encode()


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("plan", "tyni", "--local", "2"), 1, "did you mean tiny?"),
        (("plan", "tiny", "--local", "1"), 2, "tiny needs 2 nodes"),
        (("plan", "tiny", "--local", "2", "--nodes", "a,b"), 2, "leave --nodes"),
        (("plan", "tiny", "--local", "2", "--", "--node-ra", "1"), 2, "looks like node-rank"),
        (
            ("plan", "tiny", "--local", "2", "--set", "layuot.tp=2"),
            2,
            "--set layuot.tp=2: layuot: unknown key",
        ),
        (("plan", "tiny", "--local", "2", "--variant", "x"), 2, "has no variant x"),
        (("plan", "tiny", "--local", "2", "--name", "No"), 2, "cannot name a deployment"),
        (("plan", "tiny", "--local", "2", "--set", "engine.vllm=<0.2", "--set", "mods=[{name: x}]"), 1, None),
    ],
)
def test_what_cannot_be_planned_has_the_designs_exit_code(
    tmp_path: Path, words: tuple[str, ...], code: int, says: str | None
) -> None:
    done = sparkd(tmp_path, *words)
    assert done.returncode == code, done.stderr
    if says is not None:
        assert says in done.stderr
        assert "Traceback" not in done.stderr
    else:
        assert "block MOD_UNKNOWN" in done.stdout


def test_without_local_the_coordinator_plans(tmp_path: Path) -> None:
    intent = resolve(load_profile("tiny", {"HOME": "/none"})).intent
    plan = build_plan(
        "tiny", intent, local_node_facts(2, Path("/v"), [Path("/m")]),
        generation=9, serial=1, api_port=8100, rendezvous_port=29600,
    )  # fmt: skip
    waived = Verdict(id="X", severity=Severity.BLOCK, title="t", waived=True)
    token = tmp_path / "token"
    token.touch(0o600)
    with FakeCoordinator() as coordinator:
        token.write_text(coordinator.token)
        coordinator.on("POST", "/v1/plan", msgspec.to_builtins(replace(plan, verdicts=(waived,))))
        done = sparkd(
            tmp_path, "plan", "tiny", SPARKD_COORDINATOR=coordinator.url, SPARKD_TOKEN_FILE=str(token)
        )
        assert done.returncode == 0, done.stderr
        assert "generation 9" in done.stdout
        assert "block X (waived): t" in done.stdout
        (asked,) = coordinator.asked
        assert asked.body["name"] == "tiny"
        assert asked.body["intent"]["profile"]["layout"]["tp"] == 2


def test_profiles_list_show_validate_schema(tmp_path: Path) -> None:
    own = tmp_path / ".config" / "sparkd" / "profiles"
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text("schema: sparkd/v1\nname: mine\nmodel: {path: x}\nlayout: {tp: 4}\n")
    (own / "bad.yaml").write_text("schema: sparkd/v1\nname: bad\nmodel: {pth: x}\nlayout: {tp: 0}\n")

    listed: list[dict[str, Any]] = json.loads(sparkd(tmp_path, "profiles", "list", "-o", "json").stdout)
    rows = {row["name"]: row for row in listed}
    assert rows["mine"]["nodes"] == 4
    assert rows["tiny"]["model"] == "tiny"
    assert len(rows["bad"]["problems"]) == 2
    assert "bad" in sparkd(tmp_path, "profiles", "list").stdout

    shown = sparkd(tmp_path, "profiles", "show", "tiny")
    assert (builtin_profiles() / "tiny.yaml").read_text() in shown.stdout
    read = json.loads(sparkd(tmp_path, "profiles", "show", "mine", "-o", "json").stdout)
    assert read["layout"] == {"tp": 4, "pp": 1, "dp": 1}

    assert sparkd(tmp_path, "profiles", "validate", "tiny").returncode == 0
    bad = sparkd(tmp_path, "profiles", "validate", str(own / "bad.yaml"))
    assert bad.returncode == 2
    assert bad.stdout.splitlines() == [
        f"{own}/bad.yaml:3: model.pth: unknown key; did you mean path?",
        f"{own}/bad.yaml:4: layout.tp: must be at least 1, not 0",
    ]
    as_json = sparkd(tmp_path, "profiles", "validate", "bad", "-o", "json")
    assert as_json.returncode == 2
    assert json.loads(as_json.stdout)["valid"] is False

    assert sparkd(tmp_path, "profiles", "schema").stdout == schema_text()


@pytest.mark.parametrize("words", [("plan",), ("profiles",), ("profiles", "list"), ("profiles", "validate")])
def test_help_has_an_example(tmp_path: Path, words: tuple[str, ...]) -> None:
    shown = sparkd(tmp_path, *words, "--help").stdout
    assert f"sparkd {words[0]}" in shown.split("Example", 1)[1]
