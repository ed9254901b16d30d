"""Local mode from outside: the real coordinator, two real agents, and a stand-in for vLLM."""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkd.daemon import Daemon, end_daemons, is_alive
from sparkd.errors import LocalSetFailed, UsageError
from sparkd.local import Programs, Surroundings, ensure_local_set
from sparkd.local_set import LocalSet, read_local_set
from sparkd.paths import Paths, find_paths
from tests.bed.stand_in import make_stand_in

SPARKD = [sys.executable, "-P", "-m", "sparkd"]


class Home:
    """A user with an engine and a model, whose local set is this test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "models" / "tiny").mkdir(parents=True)
        (folder / "models" / "tiny" / "config.json").write_text("{}")
        self.env = {
            key: value for key, value in os.environ.items() if not key.startswith(("SPARKD_", "XDG_"))
        }
        self.env |= {
            "HOME": str(folder),
            "XDG_STATE_HOME": str(folder / "state"),
            "SPARKD_CONFIG_DIR": str(folder / "config"),
            "SPARKD_ENGINE": str(make_stand_in(folder / "engine")),
            "SPARKD_MODELS": str(folder / "models"),
        }
        self.seen: set[Daemon] = set()
        # Of its own: two sets on one machine, as in a parallel run, choose ports and name ranks alike.
        self.name = f"t-{secrets.token_hex(4)}"
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = f"api.port={free.getsockname()[1]}"
        self.up = ("up", "tiny", "--name", self.name, "--set", port, "--local", "2")

    @property
    def paths(self) -> Paths:
        return find_paths(self.env)

    @property
    def local(self) -> LocalSet:
        found = read_local_set(self.paths)
        assert found is not None
        self.seen |= set(found.daemons)
        return found

    def start(self, *words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*SPARKD, *words],
            env=self.env,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, expect: int = 0) -> str:
        with self.start(*words) as process:
            out, err = process.communicate(timeout=100)
        assert process.returncode == expect, out + err
        return out + err

    def status(self) -> Any:
        return json.loads(self.run("status", "-o", "json"))


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    if found := read_local_set(home.paths):
        home.seen |= set(found.daemons)
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [*SPARKD, "down", "--all"], env=home.env, capture_output=True, timeout=60, check=False
            )
    if found := read_local_set(home.paths):
        home.seen |= set(found.daemons)
    end_daemons(list(home.seen), 5.0)
    end_ranks_of(home)


def end_ranks_of(home: Home) -> None:
    """What a failed test left: processes of ranks whose engine lies in this test's own folder."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_rank = b"\0SPARKD_RANK=" in b"\0" + (process / "environ").read_bytes()
            if is_rank and os.fsencode(home.folder) in (process / "cmdline").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)


def ask(endpoint: Any) -> str:
    body = {
        "model": endpoint["models"][0],
        "messages": [{"role": "user", "content": "12 x 7"}],
        "max_tokens": 8,
    }
    request = urllib.request.Request(
        f"{endpoint['base_url']}/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return str(json.load(response)["choices"][0]["message"]["content"])


def test_the_main_job(home: Home) -> None:
    assert f"{home.name} answers at http://127.0.0.1:" in home.run(*home.up)
    local = home.local
    status = home.status()
    deployment = status["deployments"][0]
    assert ask(deployment["endpoint"]) == "84"
    assert [node["name"] for node in status["nodes"]] == ["local-1", "local-2"]
    assert "7070" not in local.url + local.agents_url

    home.run(*home.up)
    assert home.local == local
    assert home.status()["deployments"][0]["ranks"][0]["pid"] == deployment["ranks"][0]["pid"]

    assert f"{home.name} is stopped" in home.run("down", home.name)
    assert read_local_set(home.paths) is None
    assert not any(is_alive(daemon) for daemon in local.daemons)
    assert not any(Path(f"/proc/{rank['pid']}").exists() for rank in deployment["ranks"])
    assert f"{home.name} is stopped" in home.run("down", home.name)
    assert "no deployment other" in home.run("down", "other", expect=1)


def test_records_and_node_ids_stay_over_a_set(home: Home) -> None:
    home.run(*home.up)
    before = home.status()
    home.run("down", "--all")
    home.run(*home.up)
    after = home.status()
    assert [node["id"] for node in after["nodes"]] == [node["id"] for node in before["nodes"]]
    assert after["deployments"][0]["generation"] > before["deployments"][0]["generation"]


def test_a_set_that_runs_something_keeps_its_size_and_engine(home: Home) -> None:
    home.run(*home.up)
    local = home.local
    assert f"use --local 2, or `sparkd down {home.name}` first" in home.run(*home.up[:-1], "3", expect=1)
    home.env["SPARKD_ENGINE"] = str(make_stand_in(home.folder / "other-engine"))
    assert "with another engine" in home.run(*home.up, expect=1)
    assert home.local == local


@pytest.mark.parametrize("verb", ["up", "down"])
def test_a_coordinator_that_was_killed_is_brought_back(home: Home, verb: str) -> None:
    home.run(*home.up)
    local, before = home.local, home.status()["deployments"][0]
    os.kill(local.pid, signal.SIGKILL)
    assert "the local set's coordinator died" in home.run("status", expect=3)
    home.run(*(home.up if verb == "up" else ("down", home.name)))
    if verb == "down":
        assert not any(is_alive(daemon) for daemon in local.daemons)
        return
    assert home.local.agents == local.agents
    after = home.status()["deployments"][0]
    assert after["generation"] == before["generation"]
    assert [rank["pid"] for rank in after["ranks"]] == [rank["pid"] for rank in before["ranks"]]


def test_two_ups_at_once_make_one_set(home: Home) -> None:
    both = [home.start(*home.up) for _ in range(2)]
    for process in both:
        with process:
            out, err = process.communicate(timeout=100)
        assert process.returncode == 0, out + err
    assert len(home.status()["nodes"]) == 2


def surroundings(home: Home, programs: Programs) -> Surroundings:
    return Surroundings(paths=home.paths, env=home.env, cwd=home.folder, programs=programs)


def test_a_daemon_that_dies_at_its_start_shows_its_last_lines(home: Home) -> None:
    broken = (sys.executable, "-c", "import sys; sys.exit('no such thing as ' + 'luck')")
    with pytest.raises(LocalSetFailed, match="no such thing as luck") as error:
        ensure_local_set(2, surroundings(home, Programs(agent=broken)))
    assert str(home.paths.local) in str(error.value)
    assert not any(is_alive(daemon) for daemon in home.local.daemons)


def test_without_an_engine_both_ways_to_name_one_are_said(home: Home) -> None:
    del home.env["SPARKD_ENGINE"]
    with pytest.raises(UsageError, match=r"SPARKD_ENGINE") as error:
        ensure_local_set(2, surroundings(home, Programs()))
    assert ".venv-vllm" in str(error.value)
    assert not home.paths.local.joinpath("coordinator.json").exists()
