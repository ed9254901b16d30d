"""Plans on machines whose networks are seen: what is chosen, what people gave, and what keeps ranks apart."""

from dataclasses import replace
from pathlib import Path

import pytest

from sparkd.profile.load import parse_source
from sparkd.profile.merge import resolve
from sparkd.profile.plan import build_plan
from sparkd.records.fabric import NcclSetting
from sparkd.records.plan import Plan, PlannedEnv
from sparkd.records.report import EngineFacts, NodeFacts
from sparkd.records.verdict import Severity
from tests.bed.fabric_trees import half_without_address, hotplugged_off, pair, plain

PROFILE = "schema: sparkd/v1\nname: p\nmodel: {path: /m}\nlayout: {tp: 2}\n"


@pytest.fixture
def sparks(tmp_path: Path) -> tuple[NodeFacts, ...]:
    return tuple(
        NodeFacts(
            id=f"n{n}",
            name=f"spark-{n}",
            address=f"10.0.0.{n}",
            fabric_address=f"10.0.0.{n}",
            engines=(EngineFacts("default", ("/opt/vllm/bin/python", "-m", "x"), "0.33.0"),),
            memory_total=121 << 30,
            fabric=tree.discovered(),
        )
        for n, tree in enumerate(pair(tmp_path, ports=(0, 1)), 1)
    )


def planned(nodes: tuple[NodeFacts, ...], env: str = "{}", *sets: str) -> Plan:
    intent = resolve(parse_source(f"{PROFILE}env: {env}\n", "p.yaml"), sets=sets).intent
    return build_plan("d", intent, nodes, generation=1, serial=1, api_port=8100, rendezvous_port=29600)


def env_of(plan: Plan, rank: int) -> dict[str, PlannedEnv]:
    return {variable.name: variable for variable in plan.ranks[rank].env}


def test_each_rank_has_its_own_names_and_one_meeting_place(sparks: tuple[NodeFacts, ...]) -> None:
    plan = planned(sparks)
    assert str(plan.rendezvous) == "192.168.100.1:29600"
    assert plan.ranks[1].spec.env["VLLM_HOST_IP"] == "192.168.100.2"
    assert [env_of(plan, rank)["GLOO_SOCKET_IFNAME"].value for rank in (0, 1)] == [
        "enp1s0f0np0",
        "enp1s0f1np1",
    ]
    hca = env_of(plan, 1)["NCCL_IB_HCA"]
    assert (hca.value, hca.origin) == ("=rocep1s0f1,roceP2p1s0f1", "fabric")
    assert hca.note == "enp1s0f1np1 192.168.100.2, enP2p1s0f1np1 192.168.101.2"
    assert str(plan.api) == "10.0.0.1:8100", "clients come by the management network"
    assert plan.verdicts == ()


def test_an_empty_index_is_none(sparks: tuple[NodeFacts, ...]) -> None:
    for nodes, env in (
        (sparks, "{NCCL_IB_GID_INDEX: ''}"),
        (tuple(replace(node, rank_env={"NCCL_IB_GID_INDEX": ""}) for node in sparks), "{}"),
    ):
        plan = planned(nodes, env)
        assert all(not rank.spec.env.get("NCCL_IB_GID_INDEX") for rank in plan.ranks)
        assert plan.verdicts == ()


def test_a_profiles_index_that_is_wrong_on_one_node(sparks: tuple[NodeFacts, ...]) -> None:
    plan = planned(sparks, "{NCCL_IB_GID_INDEX: '5'}")
    assert {verdict.node: verdict.id for verdict in plan.verdicts} == {
        "n1": "GID_MISMATCH",
        "n2": "GID_MISMATCH",
    }
    assert "from the profile" in plan.verdicts[0].evidence
    assert "NCCL_IB_GID_INDEX" not in plan.ranks[0].spec.env
    kept = planned(sparks, "{NCCL_IB_GID_INDEX: '3'}")
    assert kept.verdicts == ()
    assert env_of(kept, 0)["NCCL_IB_GID_INDEX"].origin == "profile"


def test_what_was_set_is_named_with_its_origin(sparks: tuple[NodeFacts, ...]) -> None:
    plan = planned(sparks, "{}", "env.NCCL_IB_HCA=mlx5_0")
    assert "from --set env.NCCL_IB_HCA=mlx5_0" in plan.verdicts[0].evidence
    assert env_of(plan, 0)["NCCL_IB_HCA"].value == "=rocep1s0f0,roceP2p1s0f0"


def test_a_nodes_stale_interface_is_replaced_and_its_word_does_not_reach_the_rank(
    sparks: tuple[NodeFacts, ...],
) -> None:
    stale = {
        "GLOO_SOCKET_IFNAME": "enp1s0f0np0",
        "UCX_NET_DEVICES": "mlx5_7:1",
        "https_proxy": "http://10.0.0.9",
    }
    plan = planned((sparks[0], replace(sparks[1], rank_env=stale)))
    assert {verdict.id: verdict.severity for verdict in plan.verdicts} == {
        "IFNAME_STALE_CONCRETE": Severity.WARN,
        "HCA_ABSENT": Severity.WARN,
        "ENV_DIVERTS": Severity.NOTE,
    }
    assert {verdict.node for verdict in plan.verdicts} == {"n2"}
    env = plan.ranks[1].spec.env
    assert env["GLOO_SOCKET_IFNAME"] == "enp1s0f1np1"
    assert (env["UCX_NET_DEVICES"], env["https_proxy"]) == ("", ""), "masked: the agent leaves them out"
    assert not {"UCX_NET_DEVICES", "https_proxy"} & env_of(plan, 1).keys()


def test_a_nodes_true_word_is_its_own(sparks: tuple[NodeFacts, ...]) -> None:
    mine = {"NCCL_IB_HCA": "=rocep1s0f0", "NCCL_DEBUG": "WARN"}
    plan = planned((replace(sparks[0], rank_env=mine, fabric_address="192.168.101.1"), sparks[1]))
    env = env_of(plan, 0)
    assert [(env[name].value, env[name].origin) for name in mine] == [(v, "node") for v in mine.values()]
    assert (env["VLLM_HOST_IP"].value, env["VLLM_HOST_IP"].origin) == ("192.168.101.1", "node")


def test_findings_are_in_the_plan_and_can_be_waived(tmp_path: Path, sparks: tuple[NodeFacts, ...]) -> None:
    halves = tuple(
        replace(node, fabric=tree.discovered())
        for node, tree in zip(sparks, half_without_address(tmp_path / "h"), strict=True)
    )
    assert [verdict.id for verdict in planned(halves).verdicts] == ["FABRIC_HALF", "FABRIC_HALF"]
    intent = resolve(parse_source(PROFILE, "p.yaml")).intent
    forced = build_plan(
        "d",
        replace(intent, forced=("FABRIC_HALF",)),
        halves,
        generation=1,
        serial=1,
        api_port=8100,
        rendezvous_port=29600,
    )
    assert all(verdict.waived for verdict in forced.verdicts)


def test_sockets_on_purpose_lack_nothing(tmp_path: Path, sparks: tuple[NodeFacts, ...]) -> None:
    """Sparks on the LAN, one of them without its cable."""
    off = replace(sparks[1], fabric=hotplugged_off(tmp_path / "off", 2).discovered())
    absent = (sparks[0], off)
    told = {verdict.id for verdict in planned(absent).verdicts}
    assert told == {"FABRIC_ABSENT"}, "what sparkd sets itself is no wish"
    assert planned(absent, "{NCCL_IB_DISABLE: '1'}").verdicts == ()
    assert planned(absent, "{NCCL_NET: Socket}").verdicts == ()
    own = {"NCCL_IB_DISABLE": "1"}
    assert [verdict.id for verdict in planned((absent[0], replace(off, rank_env=own))).verdicts] == [
        "FABRIC_ABSENT"
    ], "only one of them"
    assert planned(tuple(replace(node, rank_env=own) for node in absent)).verdicts == ()


def test_ranks_with_rdma_ports_must_not_fall_to_sockets(sparks: tuple[NodeFacts, ...]) -> None:
    assert all(rank.spec.rdma for rank in planned(sparks).ranks)
    assert not any(rank.spec.rdma for rank in planned(sparks, "{NCCL_IB_DISABLE: '1'}").ranks)
    blind = tuple(replace(node, fabric=None) for node in sparks)
    assert not any(rank.spec.rdma for rank in planned(blind).ranks)
    intent = replace(resolve(parse_source(PROFILE, "p.yaml")).intent, forced=("TRANSPORT_SOCKETS",))
    borne = build_plan("d", intent, sparks, generation=1, serial=1, api_port=8100, rendezvous_port=29600)
    assert not any(rank.spec.rdma for rank in borne.ranks)


def test_a_profile_that_requires_rdma_is_refused_without_it(
    tmp_path: Path, sparks: tuple[NodeFacts, ...]
) -> None:
    required = "fabric.rdma=required"
    assert planned(sparks, "{}", required).verdicts == (), "it is there"
    assert all(rank.spec.rdma for rank in planned(sparks, "{}", required).ranks)

    def blocks(nodes: tuple[NodeFacts, ...], env: str = "{}") -> list[str]:
        found = planned(nodes, env, required).verdicts
        assert all(verdict.severity is Severity.BLOCK for verdict in found)
        return [f"{verdict.id}: {verdict.evidence}" for verdict in found]

    none = tuple(
        replace(node, fabric=plain(tmp_path / "none" / node.id, int(node.id[1:])).discovered())
        for node in sparks
    )
    assert planned(none).verdicts == (), "a machine without any is none for it"
    assert blocks(none) == ["FABRIC_ABSENT: spark-1: no RDMA device; spark-2: no RDMA device"]
    assert blocks(sparks, "{NCCL_IB_DISABLE: '1'}") == [
        "FABRIC_ABSENT: NCCL is kept from RDMA on spark-1, spark-2"
    ]
    own = {"NCCL_NET": "Socket"}
    assert blocks((sparks[0], replace(sparks[1], rank_env=own))) == [
        "FABRIC_ABSENT: NCCL is kept from RDMA on spark-2"
    ]
    off = replace(sparks[1], fabric=hotplugged_off(tmp_path / "off", 2).discovered())
    assert len(blocks((sparks[0], off))) == 1, "told once"
    blind = tuple(replace(node, fabric=None) for node in sparks)
    assert [text.partition(":")[0] for text in blocks(blind)] == ["FABRIC_ABSENT"]


def test_a_launch_that_was_forced_without_the_rdma_it_requires_is_read_back(
    tmp_path: Path, sparks: tuple[NodeFacts, ...]
) -> None:
    none = tuple(
        replace(node, fabric=plain(tmp_path / "none" / node.id, int(node.id[1:])).discovered())
        for node in sparks
    )
    plan = planned(none, "{}", "fabric.rdma=required")
    assert all(rank.spec.rdma for rank in plan.ranks), "a fall to sockets is its end"
    assert [env_of(plan, rank)["NCCL_DEBUG"].value for rank in (0, 1)] == ["INFO", "INFO"]
    assert not any(rank.spec.rdma for rank in planned(none).ranks)
    alone = planned(sparks[:1], "{}", "layout.tp=1", "fabric.rdma=required")
    assert alone.verdicts == ()
    assert "NCCL_DEBUG" not in env_of(alone, 0)


@pytest.mark.parametrize(
    ("name", "value", "instead", "severity"),
    [
        ("NCCL_IB_GID_INDEX", "7", "-1", Severity.WARN),
        ("NCCL_IB_DISABLE", "1", "0", Severity.WARN),
        ("NCCL_NET", "Socket", "IB", Severity.WARN),
        ("NCCL_SOCKET_FAMILY", "AF_INET6", "AF_INET", Severity.WARN),
        # What sparkd sets itself wins over the file.
        ("NCCL_IB_HCA", "mlx5_0", "=rocep1s0f1,roceP2p1s0f1", Severity.NOTE),
        ("NCCL_SOCKET_IFNAME", "eth0", "=enp1s0f1np1", Severity.NOTE),
        # No value of it means the same as none.
        ("NCCL_COMM_ID", "10.0.0.9:4000", None, Severity.BLOCK),
    ],
)
def test_what_nccl_would_read_by_itself_is_kept_from_the_rank(
    sparks: tuple[NodeFacts, ...], name: str, value: str, instead: str | None, severity: Severity
) -> None:
    first, second = sparks
    assert second.fabric is not None
    setting = NcclSetting(name, value, "/etc/nccl.conf")
    plan = planned((first, replace(second, fabric=replace(second.fabric, nccl=(setting,)))))
    (told,) = plan.verdicts
    assert (told.id, told.severity, told.node) == ("NCCL_CONF", severity, "n2")
    assert told.evidence == f"{name}={value} in /etc/nccl.conf"
    assert plan.ranks[1].spec.env.get(name) == instead
    assert plan.ranks[0].spec.env.get(name) == planned(sparks).ranks[0].spec.env.get(name)


def test_a_harmless_or_true_setting_of_nccl_is_left_alone(sparks: tuple[NodeFacts, ...]) -> None:
    first, second = sparks
    assert second.fabric is not None
    given = {"NCCL_BUFFSIZE": "8388608", "NCCL_IB_GID_INDEX": "3", "NCCL_IB_DISABLE": "0"}
    settings = tuple(NcclSetting(name, value, "/root/.nccl.conf") for name, value in given.items())
    plan = planned((first, replace(second, fabric=replace(second.fabric, nccl=settings))))
    assert plan.verdicts == ()
    assert plan.ranks[1].spec.env == planned(sparks).ranks[1].spec.env


def test_a_file_that_says_what_the_profile_says_is_not_worth_a_word(sparks: tuple[NodeFacts, ...]) -> None:
    first, second = sparks
    assert second.fabric is not None
    same = (NcclSetting("NCCL_IB_DISABLE", "1", "/etc/nccl.conf"),)
    plan = planned(
        (first, replace(second, fabric=replace(second.fabric, nccl=same))), "{NCCL_IB_DISABLE: '1'}"
    )
    assert "NCCL_CONF" not in {verdict.id for verdict in plan.verdicts}
