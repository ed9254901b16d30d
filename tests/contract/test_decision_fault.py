"""A fault in a decision about one deployment, in a real coordinator: it is told, and stops nothing."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import msgspec

from sparkd.profile.lookup import load_profile
from sparkd.profile.merge import resolve
from tests.bed.coordinator import Coordinator, coordinator
from tests.bed.fake_agent import PlayedNode
from tests.bed.gang import until

NODES = {"n1": "bad", "n2": "good"}
"""Which deployment is on which node."""


def up(one: Coordinator, node: str, name: str) -> None:
    intent = msgspec.to_builtins(resolve(load_profile("tiny"), sets=("layout.tp=1",)).intent)
    body = {"intent": {**intent, "nodes": [node]}}
    assert one.ask("PUT", f"/v1/deployments/{name}", body).status == 201


def told(one: Coordinator, name: str) -> Any:
    return one.ask("GET", f"/v1/deployments/{name}").json


def until_phase(one: Coordinator, name: str, phase: str) -> None:
    until(lambda: told(one, name)["phase"] == phase, 30, f"{name} {phase}")


def spoil(database: Path, name: str) -> None:
    """As another sparkd may have written it: a fall of this deployment cannot be judged."""
    db = sqlite3.connect(database)
    with db:
        (body,) = db.execute("SELECT body FROM deployment WHERE name = ?", (name,)).fetchone()
        record = json.loads(body)
        record["intent"]["profile"]["restart"] = {"budget": "many"}
        db.execute("UPDATE deployment SET body = ? WHERE name = ?", (json.dumps(record).encode(), name))
    db.close()


def rank_of(node: PlayedNode) -> str:
    assert node.document is not None
    return node.document.ranks[0].name


def test_one_deployments_fault_is_told_and_stops_nothing(tmp_path: Path) -> None:
    with coordinator(tmp_path, NODES) as one:
        nodes = {name: PlayedNode(one, node) for node, name in NODES.items()}
        for node, name in NODES.items():
            until(lambda: one.ask("DELETE", "/v1/deployments/absent").status == 404, 30, "the hold")
            up(one, node, name)
            until_phase(one, name, "ready")
        one.end()
        for played in nodes.values():
            played.stop()
        (database,) = one.state.glob("*.sqlite")
        spoil(database, "bad")
        one.start()
        nodes = {name: PlayedNode(one, node, "run-2") for node, name in NODES.items()}
        try:
            for name in NODES.values():
                until_phase(one, name, "ready")
            generation = told(one, "bad")["generation"]
            nodes["bad"].fall(rank_of(nodes["bad"]), "it was killed")
            until(lambda: any(v["id"] == "DECISION_FAILED" for v in told(one, "bad")["verdicts"]), 30)
            assert one.ask("GET", "/v1/deployments/bad/ready").status == 503
            assert "'many'" in told(one, "bad")["reason"]
            events = one.ask("GET", "/v1/events?follow=false").body.decode()
            assert "a decision could not be made" in events
            assert "Traceback" in one.log
            assert "ValueError" in one.log

            nodes["good"].fall(rank_of(nodes["good"]), "it was killed")
            until(lambda: told(one, "good")["falls"] == 1, 30, "a fall of the other one")
            assert (told(one, "bad")["generation"], told(one, "bad")["falls"]) == (generation, 0)
            assert one.ask("DELETE", "/v1/deployments/bad").status == 200
            until_phase(one, "bad", "stopped")
        finally:
            for played in nodes.values():
                played.stop()
