"""`sparkd explain` on whole machines names what was planted; power and memory have tests of their own."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from tests.lab.cluster import Cluster
from tests.lab.faults import disk_full, kill
from tests.lab.node import Node, until
from tests.lab.test_doctor import another_vllm

Up = Callable[..., None]
ON = ("--nodes", "a,b")


def explained(four: Cluster, name: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(four.sparkd("explain", name, "-o", "json"))
    return told


@pytest.mark.parametrize(
    ("plant", "id_"), [(another_vllm, "ENGINE_SKEW"), (disk_full, "DISK_FULL")], ids=["version", "disk"]
)
def test_what_keeps_it_from_starting(
    four: Cluster, name: str, up: Up, plant: Callable[[Node], AbstractContextManager[None]], id_: str
) -> None:
    del up  # for what it does afterwards
    with plant(four["b"]):
        four.sparkd("up", "tiny", "--name", name, *ON, ok=(1,))
        told = explained(four, name)
        text = four.sparkd("explain", name)
    assert (told["cause"]["id"], told["cause"]["node"]) == (id_, "b")
    assert told["cause"]["evidence"]
    assert f"{id_} on b" in text


def test_the_worker_that_was_killed(four: Cluster, name: str, up: Up) -> None:
    up(*ON)
    (pid,) = four["b"].run("pgrep", "-f", "^VLLM::Worker").stdout.split()
    kill(four["b"], int(pid))
    four.until(name, "ready", generation=2)

    found = explained(four, f"{name}/1")
    cause = found["cause"]
    assert (cause["id"], cause["rank"], cause["node"]) == ("PROCESS_KILLED", 1, "b")
    assert all(one["rank"] == 0 for one in found["secondary"])
    assert f"pid {pid}" in four.sparkd("explain", f"{name}/1")


@contextmanager
def walled(four: Cluster) -> Iterator[None]:
    """In front of a: of what b begins on the fabric nothing but SSH passes."""
    room, source, to = four.lab.room, four["b"].fabric.port, four["a"].fabric.port
    room.run("nft", "add", "table", "bridge", "strict")
    hook = ("{", "type", "filter", "hook", "forward", "priority", "0", ";", "}")
    room.run("nft", "add", "chain", "bridge", "strict", "drops", *hook)
    rule = ("iifname", source, "oifname", to, "ether", "type", "ip", "tcp", "dport", "1024-65535")
    begins = ("tcp", "flags", "&", "(syn|ack)", "==", "syn")
    room.run("nft", "add", "rule", "bridge", "strict", "drops", *rule, *begins, "drop")
    try:
        yield
    finally:
        room.run("nft", "delete", "table", "bridge", "strict")


def test_ranks_that_do_not_find_each_other_behind_a_firewall(four: Cluster, name: str, up: Up) -> None:
    """They say that they timed out; that it is a firewall their nodes find when they are asked at once."""
    del up
    short = ("--set", "engine.args.distributed-timeout-seconds=3", "--set", "restart.budget=0")
    with walled(four):
        four.sparkd("up", "tiny", "--name", name, *ON, *short, ok=(1,))

        def cause() -> dict[str, Any] | None:
            found = explained(four, name)["cause"]
            return found if found is not None and found["id"] == "FIREWALL" else None

        found = until(cause, "the firewall to be named", 40)
        told = explained(four, name)
    assert found["node"] == "a"
    assert any(one["id"] in {"HEAD_UNREACHABLE", "RANK_ABSENT"} for one in told["secondary"])
    assert "FIREWALL" in four.sparkd("explain", name)
