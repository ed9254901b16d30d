from sparkd.coordinator.planner import nccl_of
from sparkd.records.facts import EngineVersions, MachineFacts
from sparkd.records.preflight import Member


def test_the_nccl_that_counts_is_that_of_the_engine_which_ranks_run() -> None:
    engines = (EngineVersions("a", packages={"nccl": "2.27.3"}), EngineVersions("default"))
    member = Member("a", machine=MachineFacts(0.0, engines=engines))
    assert nccl_of({"n1": member}) == {}
    told = (engines[0], EngineVersions("default", packages={"nccl": "2.30.7"}))
    member = Member("a", machine=MachineFacts(0.0, engines=told))
    assert nccl_of({"n1": member, "n2": Member("b")}) == {"n1": "2.30.7"}
