"""The collective probe through a real coordinator and real agents, with the stand-in's probe."""

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.bed.agent_process import HOLDER, AgentProcess, until
from tests.bed.coordinator import Coordinator, sparkd
from tests.bed.ports import free_port
from tests.bed.stand_in import configure, make_stand_in

NAMES = ("node-1", "node-2", "node-3")
OF_OTHERS = ("GPU_OWNER", "ORPHAN_ENGINECORE", "SHM_LEAK", "SHM_SPACE", "MEMORY_FIT")
"""What tests beside this one do to the machine, which these agents take for their own."""
QUICK = {"collective_s": 20.0, "collective_short_s": 6.0, "collective_long_s": 6.0}


@dataclass
class Bench:
    coordinator: Coordinator
    engine: Path
    agents: list[AgentProcess]

    def configure(self, **settings: str | None) -> None:
        configure(self.engine, **settings)

    def test(self, *words: str) -> tuple[int, dict[str, Any]]:
        done = sparkd(self.coordinator, "fabric", "test", *words, "-o", "json")
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    def up(self, name: str, *words: str, tag: str = "") -> dict[str, Any]:
        """Until it is ready or has failed. What was proved with another tag has to be proved anew."""
        done = sparkd(
            self.coordinator,
            *("up", "tiny", "--name", name, "--set", f"api.port={free_port()}", "--set", "api.key=none"),
            *("--set", f"env.TAG={tag or name}"),
            *(word for id_ in OF_OTHERS for word in ("--force", id_)),
            *words,
        )
        return self.status(name) | {"said": done.stdout + done.stderr}

    def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.coordinator.ask("GET", f"/v1/deployments/{name}").json
        return found

    def down(self, name: str) -> None:
        sparkd(self.coordinator, "down", name)
        until(lambda: self.status(name)["phase"] == "stopped", f"{name} to stop")

    def rest(self) -> None:
        """Nothing of a test that failed half-way is left."""
        for one in self.coordinator.ask("GET", "/v1/deployments").json:
            self.down(one["name"])

    def told(self, kind: str) -> list[str]:
        events = self.coordinator.ask("GET", "/v1/events?follow=false&limit=1000").json
        return [one["reason"] for one in events if one["kind"] == kind]

    def probes(self) -> list[str]:
        """Names of probe ranks that some node was told to start."""
        folders = [agent.folder / "state" / "ranks" for agent in self.agents]
        return sorted(path.name for one in folders if one.is_dir() for path in one.glob("sparkd-probe-*"))


@contextmanager
def a_bench(folder: Path, names: tuple[str, ...]) -> Iterator[Bench]:
    coordinator = Coordinator(folder, {name: name for name in names}, limits=QUICK, holder=HOLDER)
    python = make_stand_in(folder / "engine")
    coordinator.start()
    with ExitStack() as stack:
        stack.callback(coordinator.end, signal.SIGKILL)
        agents = []
        for name in names:
            (folder / name / "tiny").mkdir(parents=True)
            (folder / name / "tiny" / "config.json").write_text("{}")
            url = f"http://127.0.0.1:{coordinator.agents}"
            agent = AgentProcess(
                folder / name, url, name, guest=False, python=python, fabric_address="127.0.0.1"
            )
            agent.start()
            stack.callback(agent.end)
            agents.append(agent)
        made = Bench(coordinator, folder / "engine", agents)
        stack.callback(made.rest)
        until(
            lambda: (
                [one["state"] for one in coordinator.ask("GET", "/v1/nodes").json] == ["alive"] * len(names)
            ),
            "hellos",
        )
        yield made


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with a_bench(tmp_path_factory.mktemp("pair"), NAMES[:2]) as made:
        yield made


@pytest.fixture
def pair(two: Bench) -> Iterator[Bench]:
    """As new: nothing is set, and nothing runs."""
    yield two
    two.configure(PROBE=None)
    two.rest()


def ids(test: dict[str, Any]) -> set[tuple[str, str | None, str]]:
    return {(one["id"], one["node"], one["severity"]) for one in test["verdicts"]}


def test_of_three_nodes_all_and_each_pair(tmp_path: Path) -> None:
    with a_bench(tmp_path, NAMES) as three:
        code, done = three.test()
    assert code == 0
    found = {tuple(rank["node"] for rank in test["ranks"]): test for test in done["collectives"]}
    assert set(found) == {NAMES, NAMES[:2], NAMES[1:], NAMES[::2]}
    for test in found.values():
        assert {rank["stage"] for rank in test["ranks"]} == {"done"}
        assert (test["over"], test["backend"], test["verdicts"]) == (True, "gloo", [])
        assert [step["bytes"] for step in test["steps"]][::4] == [8, 64 << 20]


def test_before_a_launch_once_for_these_nodes(pair: Bench) -> None:
    before = pair.probes()
    status = pair.up("one", tag="same")
    assert status["phase"] == "ready", status
    ours = sorted(set(pair.probes()) - set(before))
    assert [name[-3:] for name in ours] == ["-r0", "-r1"]
    assert pair.told("probe")[-1].partition(":")[2] == " 8 B in 10 us, 64 MiB at 16.0 Gb/s, gloo"
    done = sparkd(pair.coordinator, "restart", "one")
    assert done.returncode == 0, done.stderr
    until(lambda: pair.status("one")["generation"] == 2, "the next generation")
    pair.down("one")
    assert pair.up("two", tag="same")["phase"] == "ready"
    assert sorted(set(pair.probes()) - set(before)) == ours, "nothing has changed"
    assert "nothing that it depends on has changed" in pair.told("probe")[-1]
    assert all("probe" not in text for text in pair.told("exit")), "it was no fall"


def test_who_does_not_arrive_is_named_and_stops_the_launch(pair: Bench) -> None:
    pair.configure(PROBE="absent@1")
    status = pair.up("absent")
    assert status["phase"] == "failed", status
    (verdict,) = [one for one in status["verdicts"] if one["severity"] == "block"]
    assert (verdict["id"], verdict["node"], verdict["rank"]) == ("COLLECTIVE_ABSENT", "node-2", 1)
    assert (
        "rank 0 on node-1: met, its process lives; rank 1 on node-2: imported, its process lives"
        in verdict["evidence"]
    )
    until(lambda: all(not agent.rank_pids() for agent in pair.agents), "the probe to be killed")
    forced = pair.up("absent", "--force", "COLLECTIVE_ABSENT")
    assert forced["phase"] == "ready", forced
    assert [one["waived"] for one in forced["verdicts"] if one["id"] == "COLLECTIVE_ABSENT"] == [True]


@pytest.mark.parametrize(("setting", "node"), [("torchless@0", "node-1"), ("mute@1", "node-2")])
def test_a_probe_that_cannot_be_run_warns_and_the_model_starts(pair: Bench, setting: str, node: str) -> None:
    pair.configure(PROBE=setting)
    status = pair.up(node)
    assert status["phase"] == "ready", status
    assert {(one["id"], one["severity"]) for one in status["verdicts"] if one["node"] == node} >= {
        ("FABRIC_UNPROVEN", "warn")
    }


def test_a_test_for_people_shows_who_is_behind(pair: Bench) -> None:
    pair.configure(PROBE="absent@0")
    code, done = pair.test()
    (test,) = done["collectives"]
    assert code == 1
    assert {(one["id"], one["node"]) for one in test["verdicts"]} == {
        ("COLLECTIVE_ABSENT", "node-1"),
        ("COLLECTIVE_ABSENT", "node-2"),
    }
    until(lambda: all(not agent.rank_pids() for agent in pair.agents), "the probe to be killed")
    text = sparkd(pair.coordinator, "fabric", "test", "--size", "1G")
    assert "waiting for rank 0 on node-1, rank 1 on node-2 to reach the rendezvous" in text.stderr
    assert "node-1, node-2: failed" in text.stdout


def test_more_than_the_memory_bears_is_refused(pair: Bench) -> None:
    before = pair.probes()
    code, done = pair.test("--size", "16384G")
    (test,) = done["collectives"]
    assert (code, ids(test)) == (1, {("DESKTOP_OOM_FREEZE", name, "block") for name in NAMES[:2]})
    assert pair.probes() == before
    assert sparkd(pair.coordinator, "fabric", "test", "--size", "lots").returncode == 2


def test_nodes_that_serve_are_left_alone(pair: Bench) -> None:
    assert pair.up("serving")["phase"] == "ready"
    before = pair.probes()
    code, done = pair.test()
    (test,) = done["collectives"]
    assert (code, ids(test)) == (0, {("FABRIC_UNPROVEN", "node-1", "warn")})
    assert "serving is ready there" in test["verdicts"][0]["evidence"]
    assert pair.probes() == before
