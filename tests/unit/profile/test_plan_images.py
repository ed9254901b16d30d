"""A plan for ranks in containers: the image's engine, one content on all nodes, what stands in the way."""

from dataclasses import replace
from typing import Any

import pytest

from sparkd.errors import EngineUnknown, UsageError
from sparkd.preflight.judge import judge
from sparkd.preflight.member import member_of
from sparkd.profile.load import parse_source
from sparkd.profile.merge import resolve
from sparkd.profile.plan import build_plan
from sparkd.records.facts import EngineVersions, MachineFacts
from sparkd.records.image import ImageFacts, ImageReport, ModFacts
from sparkd.records.plan import Plan
from sparkd.records.rank import PinnedImage
from sparkd.records.report import EngineFacts, NodeFacts, TaskResult
from sparkd.records.verdict import Severity

PROFILE = "schema: sparkd/v1\nname: p\nmodel: {path: /m}\nlayout: {tp: 2}\nengine: {vllm: '>=0.24,<0.34'}\n"
NODES = tuple(
    NodeFacts(
        id=f"n{number}",
        name=f"spark-{number}",
        address=f"10.0.0.{number}",
        fabric_address=f"192.168.7.{number}",
        fabric_interface="enp1s0f0np0",
        runtimes=("systemd", "process", "docker"),
        engines=(EngineFacts("default", ("/opt/vllm/bin/python", "-m", "x"), "0.20.0"),),
        model_roots=("/var/models",),
    )
    for number in (1, 2)
)


def report(**changes: Any) -> ImageReport:
    facts = ImageFacts("3.12.3", "aarch64", vllm="0.32.0", torch="2.13.0", nccl="2.28")
    found = ImageReport("vllm:1", "0123456789ab", facts, ("python3", "-m", "vllm.entrypoints.cli.main"))
    return replace(found, **changes)


def plan(
    images: dict[str, ImageReport], nodes: tuple[NodeFacts, ...] = NODES, sets: tuple[str, ...] = ()
) -> Plan:
    intent = resolve(parse_source(PROFILE, "p.yaml"), sets=sets, image="vllm:1").intent
    return build_plan(
        "p", intent, nodes, generation=1, serial=1, api_port=8100, rendezvous_port=29600, images=images
    )


def blocks(made: Plan) -> list[str]:
    return [verdict.id for verdict in made.verdicts if verdict.severity is Severity.BLOCK]


def test_the_engine_is_the_images_and_not_the_nodes() -> None:
    wrapped = report(command=("/opt/entrypoint.sh", "python3", "-m", "vllm.entrypoints.cli.main"))
    made = plan({"n1": wrapped, "n2": wrapped})
    assert blocks(made) == [], "the node's own vLLM 0.20 is not asked about"
    for rank in made.ranks:
        assert rank.spec.runtime == "docker"
        assert rank.spec.image == PinnedImage("vllm:1", "0123456789ab")
        assert rank.argv[:5] == (*wrapped.command, "serve")
    assert any("vllm:1" in note for note in made.notes)


def test_before_nodes_were_asked_nothing_is_pinned() -> None:
    made = plan({})
    assert blocks(made) == []
    assert {rank.spec.image for rank in made.ranks} == {PinnedImage("vllm:1", "")}


def test_a_profile_bounds_the_shared_memory() -> None:
    sized = plan({}, sets=("memory.shm_gib=2",))
    assert {rank.spec.memory.shm_bytes for rank in (*plan({}).ranks, *sized.ranks)} == {0, 2 << 30}


def test_two_contents_are_no_gang() -> None:
    made = plan({"n1": report(), "n2": report(identity="ba9876543210")})
    (verdict,) = [one for one in made.verdicts if one.id == "IMAGE_MISMATCH"]
    assert verdict.severity is Severity.BLOCK
    assert "0123456789ab" in verdict.evidence
    assert "ba9876543210" in verdict.evidence
    assert "spark-2" in verdict.evidence


def test_the_images_vllm_is_judged_as_an_installed_one() -> None:
    old = report(facts=replace(report().facts, vllm="0.20.1"))
    assert "ENGINE_VERSION" in blocks(plan({"n1": old, "n2": old}))
    none = report(facts=replace(report().facts, vllm=None))
    assert blocks(plan({"n1": none, "n2": none})) == ["IMAGE_NO_VLLM"] * 2


def test_a_node_without_docker_cannot() -> None:
    nodes = (NODES[0], replace(NODES[1], runtimes=("systemd",)))
    with pytest.raises(UsageError, match=r"spark-2 cannot run ranks by docker"):
        plan({}, nodes)


def test_a_node_without_an_engine_is_told_of_images_where_it_can_run_them() -> None:
    intent = resolve(parse_source(PROFILE, "p.yaml")).intent
    for runtimes, told in ((("process", "docker"), True), (("process",), False)):
        nodes = tuple(replace(node, engines=(), runtimes=runtimes) for node in NODES)
        with pytest.raises(EngineUnknown) as unknown:
            build_plan("p", intent, nodes, generation=1, serial=1, api_port=1, rendezvous_port=2)
        assert ("--image" in str(unknown.value)) is told


def test_without_an_engine_the_images_that_all_chosen_nodes_have_are_named() -> None:
    intent = resolve(parse_source(PROFILE, "p.yaml")).intent
    names = (("vllm:1", "ours:2"), ("ours:2", "other:3"))
    nodes = [replace(node, engines=(), images=has) for node, has in zip(NODES, names, strict=True)]
    with pytest.raises(EngineUnknown, match=r"--image\); all nodes have ours:2$") as unknown:
        build_plan("p", intent, nodes, generation=1, serial=1, api_port=1, rendezvous_port=2)
    assert unknown.value.exit_code == 2


def member(result: TaskResult | None) -> Any:
    machine = MachineFacts(wall=0.0, engines=(EngineVersions("default", packages={"vllm": "0.20.0"}),))
    return replace(member_of(NODES[0], {"image": result}), machine=machine)


def test_what_a_node_says_against_an_image_blocks() -> None:
    trouble = {"id": "DOCKER_DOWN", "title": "away", "said": "no such file", "remedy": "start it"}
    found = judge((member(TaskResult("t", ok=True, result={"trouble": trouble})),))
    (verdict,) = [one for one in found if one.id == "DOCKER_DOWN"]
    assert (verdict.severity, verdict.node, verdict.remedy) == (Severity.BLOCK, "spark-1", "start it")


@pytest.mark.parametrize(
    "result",
    [None, TaskResult("t", ok=False, error="unknown kind"), TaskResult("t", ok=True, result={"report": 1})],
)
def test_a_node_that_says_nothing_understandable_of_an_image_blocks(result: TaskResult | None) -> None:
    found = judge((member(result),))
    assert [(one.id, one.node) for one in found if one.severity is Severity.BLOCK] == [
        ("PREFLIGHT_ERROR", "spark-1")
    ]


def test_rules_see_the_images_versions_and_not_the_nodes() -> None:
    machine = {"wall": 0.0, "engines": [{"name": "default", "packages": {"vllm": "0.20.0"}}]}
    answers = {
        "facts": TaskResult("f", ok=True, result=machine),
        "image": TaskResult(
            "t",
            ok=True,
            result={
                "report": {
                    "name": "vllm:1",
                    "identity": "0123456789ab",
                    "facts": {"python": "3.12.3", "machine": "aarch64", "vllm": "0.32.0"},
                    "command": ["python3"],
                }
            },
        ),
    }
    found = member_of(NODES[0], answers)
    assert found.machine is not None
    assert [engine.packages for engine in found.machine.engines] == [{"vllm": "0.32.0"}]


def test_what_the_images_own_sources_lack_is_known_for_certain() -> None:
    """A development build's number says little; its sources tell."""
    facts = ImageFacts("3.12.3", "aarch64", vllm="0.33.1.dev7", flags=("max-model-len", "new-in-this-fork"))
    built = report(facts=facts)
    sets = ("engine.args.enforce-eager=true", "engine.args.new-in-this-fork=1", "engine.args.a-plug-ins=1")
    made = plan({"n1": built, "n2": built}, sets=sets)
    (verdict,) = [one for one in made.verdicts if one.id == "ENGINE_FLAGS"]
    assert (verdict.severity, "--enforce-eager" in verdict.title) == (Severity.BLOCK, True)
    assert "fork" not in verdict.title
    assert "plug-in" not in verdict.title


@pytest.mark.parametrize(
    ("more", "found"),
    [("", 1), (", unknown: try", 0), (", required: false", 0)],
    ids=["refuse", "try", "may lack"],
)
def test_a_required_mod_that_does_not_know_the_images_vllm(more: str, found: int) -> None:
    said = (ModFacts("mimo-config", "unknown", "its code is new"), ModFacts("mimo-fused-qkv", "unknown", "x"))
    built = report(facts=ImageFacts("3.12.3", "aarch64", vllm="0.32.0", mods=said))
    made = plan({"n1": built, "n2": built}, sets=(f"mods=[{{name: mimo-config{more}}}]",))
    verdicts = [one for one in made.verdicts if one.id == "MOD_MISSING"]
    assert len(verdicts) == found
    assert all("its code is new" in one.evidence for one in verdicts)
