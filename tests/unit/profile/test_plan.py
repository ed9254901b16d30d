import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.engine.releases import stated
from sparkd.engine.versions import VersionRange
from sparkd.errors import EngineUnknown, UsageError
from sparkd.local_facts import local_node_facts
from sparkd.profile.load import parse_source
from sparkd.profile.merge import resolve
from sparkd.profile.models import model_paths
from sparkd.profile.plan import build_plan, needs_api_key
from sparkd.profile.show import plan_json, plan_lines
from sparkd.records.intent import Intent
from sparkd.records.plan import Plan
from sparkd.records.report import EngineFacts, NodeFacts
from sparkd.records.verdict import Severity
from tests.bed.builtin_plans import GOLDEN, builtin_names, builtin_plan, builtin_text, golden_file

BASE: dict[str, Any] = {"schema": "sparkd/v1", "name": "p", "model": {"path": "/m"}, "layout": {"tp": 2}}
LOCAL = local_node_facts(2, Path("/opt/vllm"), [Path("/srv/models")])


def spark(number: int, **changes: Any) -> NodeFacts:
    facts = NodeFacts(
        id=f"n{number}",
        name=f"spark-{number}",
        address=f"10.0.0.{number}",
        fabric_address=f"192.168.7.{number}",
        fabric_interface="enp1s0f0np0",
        runtimes=("systemd", "process"),
        engines=(EngineFacts("default", ("/opt/vllm/bin/python", "-m", "x"), "0.33.0"),),
        model_roots=("/var/models", "/home/me/.cache/huggingface/hub"),
        memory_total=121 << 30,
    )
    return replace(facts, **changes)


SPARKS = (spark(1), spark(2))


def as_yaml(data: Any) -> str:
    """JSON is YAML but for one thing: characters beyond U+FFFF are escaped in one piece."""
    pair = re.compile(r"\\u(d[89ab]..)\\u(d[c-f]..)")
    return pair.sub(
        lambda match: f"\\U{ord(bytes.fromhex(match[1] + match[2]).decode('utf-16-be')):08x}",
        json.dumps(data),
    )


def intent_of(engine_args: tuple[str, ...] = (), sets: tuple[str, ...] = (), **sections: Any) -> Intent:
    source = parse_source(as_yaml(BASE | sections), "p.yaml")
    return resolve(source, sets=sets, engine_args=engine_args).intent


def plan_of(intent: Intent, nodes: tuple[NodeFacts, ...] = SPARKS, **changes: Any) -> Plan:
    arguments = {"generation": 3, "serial": 5, "api_port": 8107, "rendezvous_port": 29601} | changes
    return build_plan("dep", intent, nodes, **arguments)


@pytest.mark.parametrize(("name", "variant"), builtin_names())
def test_golden_plans(name: str, variant: str | None) -> None:
    assert builtin_text(name, variant) == golden_file(name, variant).read_text()


@pytest.mark.parametrize(("name", "variant"), builtin_names())
def test_built_in_profiles_are_for_the_versions_that_they_state(name: str, variant: str | None) -> None:
    vllm = VersionRange.parse(
        builtin_plan(name, variant).ranks[0].spec.descriptor.intent.profile["engine"]["vllm"]
    )
    assert stated(vllm)
    for release in stated(vllm):
        against = builtin_plan(name, variant, f"{release}.0").verdicts
        assert [verdict for verdict in against if not verdict.id.startswith("MOD_")] == []


@pytest.mark.parametrize(("name", "variant"), builtin_names())
def test_no_built_in_profile_speculates_with_asynchronous_scheduling(name: str, variant: str | None) -> None:
    for rank in builtin_plan(name, variant).ranks:
        if "--speculative-config" in rank.argv:
            assert "--no-async-scheduling" in rank.argv


def test_there_is_no_golden_plan_without_a_profile() -> None:
    assert set(GOLDEN.glob("*.txt")) == {golden_file(*asked) for asked in builtin_names()}


def test_ranks_of_two_sparks() -> None:
    plan = plan_of(intent_of(), api_key="secret-1")
    head, follower = (rank.spec for rank in plan.ranks)
    common = ("--nnodes", "2", "--node-rank", "{}", "--master-addr", "192.168.7.1", "--master-port", "29601",
              "--distributed-executor-backend", "mp")  # fmt: skip
    assert head.args == (
        "serve", "/m", "--served-model-name", "dep", "--host", "10.0.0.1", "--port", "8107",
        "--disable-access-log-for-endpoints", "/health,/metrics",
        "--tensor-parallel-size", "2", *(word.format(0) for word in common),
    )  # fmt: skip
    assert follower.args == (
        "serve", "/m", "--served-model-name", "dep", "--tensor-parallel-size", "2",
        *(word.format(1) for word in common), "--headless",
    )  # fmt: skip
    assert head.env == {
        "VLLM_HOST_IP": "192.168.7.1",
        "GLOO_SOCKET_IFNAME": "enp1s0f0np0",
        "NCCL_SOCKET_IFNAME": "=enp1s0f0np0",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
    assert head.secrets == {"VLLM_API_KEY": "secret-1"}
    assert follower.secrets == {}
    assert (head.name, head.runtime, head.ranks) == ("sparkd-dep-g3-r0", "systemd", 2)
    assert head.probe is not None
    assert (head.probe.api, head.probe.model) == (plan.api, "dep")
    assert follower.probe is None
    assert head.descriptor.nodes == ("n1", "n2")
    assert plan.ranks[0].argv == ("/opt/vllm/bin/python", "-m", "x", *head.args)


def test_a_profile_may_choose_what_the_access_log_leaves_out() -> None:
    intent = intent_of(engine={"vllm": ">=0.24", "args": {"disable_access_log_for_endpoints": "/ping"}})
    (head, _) = (rank.argv for rank in plan_of(intent).ranks)
    assert [value for flag, value in pairwise(head) if flag.startswith("--disable-access")] == ["/ping"]


def test_the_api_key_is_in_no_output() -> None:
    plan = plan_of(intent_of(), api_key="secret-1")
    assert "secret-1" not in "\n".join(plan_lines(plan))
    assert b"secret-1" not in msgspec.json.encode(plan_json(plan))


def test_a_single_node_needs_no_rendezvous_flags() -> None:
    plan = plan_of(intent_of(layout={}), SPARKS[:1])
    words = plan.ranks[0].spec.args
    for flag in ("--nnodes", "--node-rank", "--master-addr", "--master-port", "--headless"):
        assert flag not in words
    assert "--distributed-executor-backend" not in words


def test_pipeline_ranks_count_and_extra_nodes_are_spares() -> None:
    plan = plan_of(intent_of(layout={"tp": 1, "pp": 2}), (*SPARKS, spark(3)))
    assert len(plan.ranks) == 2
    assert "--pipeline-parallel-size" in plan.ranks[0].spec.args
    assert "spare: spark-3" in plan.notes


def test_a_hub_model_lies_in_a_snapshot_and_is_served_under_its_id_too() -> None:
    intent = intent_of(model={"id": "org/Model-1", "revision": "a" * 40})
    snapshot = f"models--org--Model-1/snapshots/{'a' * 40}"
    plan = plan_of(intent)
    assert plan.model_path == f"/var/models/{snapshot}"
    assert plan.served_names == ("dep", "org/Model-1")
    assert plan.ranks[0].spec.args[2:5] == ("--served-model-name", "dep", "org/Model-1")
    found = plan_of(intent, model_path={"n1": "/a", "n2": "/b"})
    assert [rank.spec.args[1] for rank in found.ranks] == ["/a", "/b"]


def test_model_paths_are_every_place_to_look() -> None:
    source = parse_source(as_yaml(BASE | {"model": {"path": "some/tiny"}}), "p")
    assert model_paths(source.profile.model, SPARKS[0]) == (
        "/var/models/some/tiny",
        "/home/me/.cache/huggingface/hub/some/tiny",
    )
    with pytest.raises(UsageError, match="spark-9 has no model root"):
        model_paths(source.profile.model, spark(9, model_roots=()))


def test_origins_of_arguments_and_variables() -> None:
    intent = intent_of(
        engine={"args": {"dtype": "auto", "compilation-config": {"mode": 1}, "seed": 1}},
        env={"A": "1", "B": "2", "EMPTY": "", "NCCL_DEBUG": "WARN"},
        sets=("engine.args.compilation-config.level=2", "env.B=3"),
        engine_args=("--seed", "4"),
    )
    node = spark(1, rank_env={"NCCL_DEBUG": "INFO", "HF_TOKEN": "hidden-1", "A": "", "C": "5"})
    plan = plan_of(intent, (node, SPARKS[1]))
    args = {arg.words[0]: (arg.words[1:], arg.origin, arg.note) for arg in plan.ranks[0].args}
    assert args["--dtype"] == (("auto",), "profile", "")
    assert args["--seed"] == (("4",), "argument", "-- --seed 4")
    assert args["--compilation-config"] == (
        ('{"mode": 1, "level": 2}',),
        "set",
        "mode: profile; level: --set engine.args.compilation-config.level=2",
    )
    assert args["--master-addr"][1] == "fabric"
    env = {variable.name: (variable.value, variable.origin) for variable in plan.ranks[0].env}
    assert env["VLLM_HOST_IP"] == ("192.168.7.1", "fabric")
    assert env["HF_HUB_OFFLINE"] == ("1", "default")
    assert env["B"] == ("3", "set")
    assert env["C"] == ("5", "node")
    assert env["NCCL_DEBUG"] == ("INFO", "node")
    assert not {"A", "EMPTY"} & env.keys()
    assert "HF_TOKEN" not in plan.ranks[0].spec.env
    assert b"hidden-1" not in msgspec.json.encode(plan)
    assert plan.ranks[1].spec.env["A"] == "1"


@pytest.mark.parametrize(
    ("nodes", "api", "expected", "needed"),
    [
        (SPARKS, {}, "10.0.0.1:8107", True),
        (LOCAL, {}, "127.0.0.1:8107", False),
        (SPARKS, {"key": "none"}, "10.0.0.1:8107", False),
        (SPARKS, {"host": "127.0.0.1"}, "127.0.0.1:8107", False),
        (LOCAL, {"host": "10.9.9.9"}, "10.9.9.9:8107", True),
        (SPARKS, {"host": "fd00::1"}, "[fd00::1]:8107", True),
    ],
)
def test_where_the_api_is_and_whether_it_needs_a_key(
    nodes: tuple[NodeFacts, ...], api: dict[str, str], expected: str, needed: bool
) -> None:
    intent = intent_of(api=api)
    assert str(plan_of(intent, nodes).api) == expected
    assert needs_api_key(intent, nodes) is needed


def test_nodes_that_cannot_carry_the_layout_are_refused() -> None:
    with pytest.raises(UsageError, match="dep needs 2 nodes"):
        plan_of(intent_of(), SPARKS[:1])
    with pytest.raises(EngineUnknown, match="spark-1 has no engine"):
        plan_of(intent_of(), (spark(1, engines=()), SPARKS[1]))
    with pytest.raises(UsageError, match="cannot run ranks by docker"):
        plan_of(replace(intent_of(), image="vllm:1"))
    unable = spark(1, runtimes=(), limits=("it starts no rank: set rank.user in agent.toml",))
    with pytest.raises(UsageError, match=r"\(it has: none\); it starts no rank: set rank\.user"):
        plan_of(intent_of(), (unable, SPARKS[1]))


@pytest.mark.parametrize(
    ("changes", "sections", "expected"),
    [
        ({}, {}, []),
        ({"memory_total": 5 << 30}, {}, [("MEMORY_FIT", Severity.BLOCK, "n1")]),
        ({"memory_total": 0}, {"memory": {"weights_gib": 400}}, [("MEMORY_FIT", Severity.BLOCK, "n2")]),
        (
            {"engines": (EngineFacts("e", ("v",), "0.20.1"),)},
            {},
            [("ENGINE_VERSION", Severity.BLOCK, "n1")],
        ),
        (
            {"engines": (EngineFacts("e", ("v",), "0.35.0rc1.dev3+gabc"),)},
            {},
            [("ENGINE_VERSION", Severity.WARN, "n1")],
        ),
        ({"engines": (EngineFacts("e", ("v",)),)}, {}, []),
        ({}, {"mods": [{"name": "x", "required": False}]}, [("MOD_UNKNOWN", Severity.WARN, None)]),
        (
            {"engines": (EngineFacts("e", ("v",), "0.24.0"),)},
            {"engine": {"args": {"watchdog-config": {}}}, "env": {"VLLM_TRITON_USE_TD": 1}},
            [("ENGINE_FLAGS", Severity.BLOCK, None), ("ENGINE_VARIABLES", Severity.WARN, None)],
        ),
        (
            {"engines": (EngineFacts("e", ("v",), "0.32.1rc1.dev3+gabc"),)},
            {"engine": {"args": {"watchdog-config": {}}}},
            [("ENGINE_FLAGS", Severity.WARN, None)],
        ),
    ],
)
def test_verdicts(changes: dict[str, Any], sections: dict[str, Any], expected: list[Any]) -> None:
    plan = plan_of(intent_of(**sections), (spark(1, **changes), SPARKS[1]))
    assert [(verdict.id, verdict.severity, verdict.node) for verdict in plan.verdicts] == expected
    assert all(verdict.remedy for verdict in plan.verdicts)


def test_what_the_engines_lack_is_said_once_for_each_version() -> None:
    old = tuple(spark(n, engines=(EngineFacts("e", ("v",), "0.24.0"),)) for n in (1, 2))
    plan = plan_of(intent_of(engine={"args": {"watchdog-config": {}}}), old)
    (verdict,) = plan.verdicts
    assert verdict.title == "the engine has no --watchdog-config and would not start"
    assert verdict.evidence == "vLLM 0.24.0 on spark-1, spark-2"


def test_a_verdict_is_waived_by_its_id_alone() -> None:
    intent = replace(intent_of(memory={"weights_gib": 400}), forced=("MEMORY_FIT", "NO_SUCH"))
    plan = plan_of(intent, (spark(1, engines=(EngineFacts("e", ("v",), "0.20"),)), SPARKS[1]))
    assert {(v.id, v.waived) for v in plan.verdicts} == {("MEMORY_FIT", True), ("ENGINE_VERSION", False)}


def test_an_unknown_flag_is_noted() -> None:
    plan = plan_of(intent_of(engine_args=("--gdn-decode-kernel", "x"), env={"VLLM_NO_USAGE_STAT": 1}))
    assert any("did you mean VLLM_NO_USAGE_STATS?" in note for note in plan.notes)
    assert any("--gdn-decode-kernel is no flag that sparkd knows" in note for note in plan.notes)


def test_the_rendezvous_ports_of_a_deployment_are_remembered() -> None:
    plan = plan_of(intent_of(), rendezvous_ports=(29603, 29600), rendezvous_port=29605)
    assert plan.ranks[0].spec.descriptor.rendezvous_ports == (29603, 29600, 29605)
    assert str(plan.rendezvous) == "192.168.7.1:29605"


def test_an_intent_that_went_through_json_gives_the_same_plan() -> None:
    intent = intent_of(engine={"args": {"speculative-config": {"z": 1, "a": [1.5, None]}}}, sets=("env.B=3",))
    stored = msgspec.json.decode(msgspec.json.encode(intent), type=Intent)
    assert stored == intent
    assert plan_of(stored) == plan_of(intent)


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)


@given(TEXT, TEXT)
def test_any_path_and_any_value_reach_argv_verbatim(path: str, value: str) -> None:
    intent = intent_of(
        model={"path": f"/{path}"}, engine={"args": {"chat-template": value}}, env={"A": value}
    )
    spec = plan_of(intent).ranks[0].spec
    assert spec.args[1] == f"/{path}"
    assert spec.args[-2:] == ("--chat-template", value) or spec.args[-1] == f"--chat-template={value}"
    assert spec.env["A"] == value
    stored = msgspec.json.decode(msgspec.json.encode(spec), type=type(spec))
    assert stored == spec


@given(TEXT)
def test_a_value_on_the_command_line_reaches_argv_verbatim(value: str) -> None:
    spec = plan_of(intent_of(engine_args=(f"--chat-template={value}", f"--new-thing={value}"))).ranks[0].spec
    shown = " ".join(spec.args)
    assert f"--chat-template={value}" in spec.args or value in spec.args
    assert shown.endswith(value)


@given(TEXT)
def test_the_shown_plan_is_one_line_a_value(value: str) -> None:
    words = (f"--chat-template={value}",)
    plan = plan_of(intent_of(model={"path": f"/{value}"}, env={"A": value}, engine_args=words))
    for line in plan_lines(plan):
        assert len(line.splitlines()) <= 1
