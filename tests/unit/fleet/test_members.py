from dataclasses import replace

import pytest

from sparkd.errors import Conflict, NotFound
from sparkd.fleet.members import enrol, removable, remove
from sparkd.fleet.nodes import Node
from sparkd.fleet.state import Fleet
from sparkd.gang.record import GangRecord
from sparkd.gang.state import Gang
from sparkd.records.intent import Intent
from sparkd.records.report import RankReport
from sparkd.records.status import Phase


def fleet(*nodes: Node, **more: object) -> Fleet:
    known = {node.id: node for node in nodes}
    return replace(Fleet("h", 1, "i", 0.0, enrolled=frozenset(known), nodes=known), **more)


def gang(phase: Phase, *nodes: str) -> dict[str, Gang]:
    return {"glm": Gang(GangRecord("glm", Intent("p", {}), phase=phase, nodes=nodes))}


ALIVE = Node("id-1", "spark-1", greeted=True, state="alive")
AWAY = replace(ALIVE, state="silent")


def test_an_enrolled_node_is_expected_and_has_not_spoken() -> None:
    after, said = enrol(fleet(), "id-1", "spark-1")
    assert after.enrolled == {"id-1"}
    assert not after.nodes["id-1"].greeted
    assert len(said) == 1
    assert enrol(after, "id-1", "spark-1") == (after, ())


def test_enrolled_anew_it_keeps_what_it_said() -> None:
    after, _ = enrol(fleet(ALIVE), "id-1", "first-spark")
    assert after.nodes["id-1"] == replace(ALIVE, name="first-spark")


def test_a_removed_node_leaves_nothing_in_the_fleet() -> None:
    full = fleet(ALIVE, Node("id-2", "spark-2"), drained=frozenset({"id-1"}), follows={"id-1": ()})
    after, said = remove(full, removable(full, "spark-1").id)
    assert set(after.nodes) == after.enrolled == {"id-2"}
    assert after.drained == frozenset()
    assert after.follows == {}
    assert len(said) == 1
    assert remove(after, "id-1") == (after, ())


def test_who_is_not_there_cannot_be_removed() -> None:
    with pytest.raises(NotFound, match="known: spark-1"):
        removable(fleet(ALIVE), "spark-9")


@pytest.mark.parametrize("node", [ALIVE, AWAY], ids=["alive", "away"])
def test_a_rank_of_a_deployment_that_is_up_holds_its_node(node: Node) -> None:
    for phase in ("pending", "loading", "ready", "recovering", "stopping"):
        with pytest.raises(Conflict, match="sparkd down glm"):
            removable(fleet(node, gangs=gang(phase, "id-1")), "id-1")  # type: ignore[arg-type]
    assert removable(fleet(node, gangs=gang("ready", "id-2")), "id-1") == node
    for phase in ("stopped", "failed"):
        assert removable(fleet(node, gangs=gang(phase, "id-1")), "id-1") == node  # type: ignore[arg-type]


def test_what_is_left_on_a_node_in_contact_holds_it_and_a_dead_one_may_go() -> None:
    left = {"sparkd-glm-g3-r1": RankReport("sparkd-glm-g3-r1", "running")}
    with pytest.raises(Conflict, match="sparkd-glm-g3-r1"):
        removable(fleet(replace(ALIVE, reports=left)), "spark-1")
    assert removable(fleet(replace(AWAY, reports=left)), "spark-1").id == "id-1"
