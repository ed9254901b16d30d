"""The preflight as people read it: severities, the exact remedies, and what a person waived."""

from dataclasses import replace
from pathlib import Path

import pytest

from sparkd.preflight.judge import blocks_of, judge
from sparkd.preflight.member import member_of
from sparkd.profile.load import parse_source
from sparkd.profile.merge import resolve
from sparkd.profile.plan import build_plan
from sparkd.records.checkpoint import Checkpoint, CheckpointDefect, ModelsFound
from sparkd.records.defaults import GIB
from sparkd.records.facts import EngineVersions, MachineFacts, ProcessFacts, StaleFile
from sparkd.records.intent import Intent
from sparkd.records.memory import Memory
from sparkd.records.plan import Plan
from sparkd.records.preflight import Member
from sparkd.records.report import EngineFacts, NodeFacts, TaskResult
from sparkd.records.verdict import Severity
from tests.bed.fabric_trees import pair

FILES = {"config.json": 800, **{f"model-0000{n}-of-00004.safetensors": 46 * GIB for n in range(1, 5)}}
INTENT = Intent(
    "big",
    {
        "layout": {"tp": 2},
        "model": {"id": "o/m", "revision": "c" * 40},
        "mods": [{"name": "mimo-config"}],
    },
)


def whole(path: str = "/models/big", files: dict[str, int] = FILES) -> ModelsFound:
    return ModelsFound(Checkpoint(path, bytes=sum(files.values()), files=files, headers="aa"))


def node(number: int, **changes: object) -> Member:
    healthy = Member(
        name=f"spark-{number}",
        address=f"10.0.0.{number}",
        fabric_address=f"192.168.100.{number}",
        runtime="systemd",
        model_roots=("/models",),
        machine=MachineFacts(
            wall=0.0,
            hostname=f"spark-{number}",
            hostname_addresses=(f"10.0.0.{number}",),
            kernel="6.14.0-1015-nvidia",
            driver="580.95.05",
            driver_library="580.95.05",
            engines=(EngineVersions("default", "3.12.3", {"vllm": "0.25.1"}, "aa"),),
            mods="aa",
            memory=Memory(120 * GIB, 110 * GIB, 100 * GIB),
            stale=(),
        ),
        models=whole(),
    )
    return replace(healthy, **changes)  # type: ignore[arg-type]


def machine_of(number: int, **changes: object) -> Member:
    healthy = node(number)
    assert healthy.machine is not None
    return replace(healthy, machine=replace(healthy.machine, **changes))  # type: ignore[arg-type]


def test_a_healthy_gang_gives_no_word() -> None:
    assert judge([node(1), node(2)], intent=INTENT) == ()
    assert judge([node(1), node(2)]) == ()


def test_the_remedy_of_a_cut_shard_is_the_line_to_type() -> None:
    file = "/models/big/model-00002-of-00004.safetensors"
    defect = CheckpointDefect("size", file, f"{file} has 1 of the 2 bytes that its header describes (60%)")
    cut = replace(whole().model, files={**FILES, "model-00002-of-00004.safetensors": 9}, defects=(defect,))
    (found,) = judge([node(1), node(2, models=ModelsFound(cut))], intent=INTENT)
    assert (found.id, found.severity, found.node) == ("HALF_DOWNLOAD", Severity.BLOCK, "spark-2")
    assert found.evidence == defect.detail
    assert found.remedy == (
        "on spark-1: rsync -aH --partial --mkpath --info=progress2 /models/big/ 192.168.100.2:/models/big/ "
        "(46.0 GiB, about 2 min)"
    )


JINJA = "/models/big/chat_template.jinja"


def skewed(odd: dict[str, int]) -> str:
    (found,) = judge([node(1), node(2, models=whole(files=odd)), node(3)], intent=INTENT)
    assert (found.id, found.node) == ("CHECKPOINT_SKEW", "spark-2")
    return found.remedy


def test_what_one_node_has_more_of_goes_to_all_others_or_away() -> None:
    line = "rsync -aH --partial --mkpath --info=progress2 /models/big/"
    assert skewed({**FILES, "chat_template.jinja": 5000}) == (
        f"on spark-2: {line} 192.168.100.1:/models/big/ (less than a minute); "
        f"on spark-2: {line} 192.168.100.3:/models/big/ (less than a minute); or remove {JINJA} on spark-2"
    )


def test_a_copy_does_not_take_away_what_is_too_much() -> None:
    odd = {**FILES, "config.json": 801, "chat_template.jinja": 5000}
    line = "on spark-1: rsync -aH --partial --mkpath --info=progress2 /models/big/ 192.168.100.2:/models/big/"
    assert skewed(odd) == f"{line} (less than a minute); then remove {JINJA} on spark-2"


def test_other_weights_of_the_same_sizes_are_copied_whole() -> None:
    other = ModelsFound(replace(whole().model, headers="bb"))
    (found,) = judge([node(1), node(2, models=other)], intent=INTENT)
    assert found.remedy.endswith("(184.0 GiB, about 8 min)")


def test_a_drafter_is_copied_under_its_own_name() -> None:
    """Where it should lie on the node that lacks it is the first place that was looked at."""
    drafter = Checkpoint("/models/draft", bytes=GIB, files={"model.safetensors": GIB}, headers="dd")
    words = "no model for model.also.draft with a config.json; looked at /models/draft"
    absent = Checkpoint("/models/draft", defects=(CheckpointDefect("missing", "/models/draft", words),))
    gang = [
        node(n, models=ModelsFound(whole().model, {"draft": one})) for n, one in ((1, drafter), (2, absent))
    ]
    (found,) = judge(gang, intent=INTENT)
    assert (found.id, found.node, found.evidence) == ("HALF_DOWNLOAD", "spark-2", words)
    assert found.title == "one file of model.also.draft cannot be used"
    assert "/models/draft/ 192.168.100.2:/models/draft/ (1.0 GiB" in found.remedy


def test_a_snapshot_is_copied_with_its_blobs_to_where_the_other_node_has_its_models() -> None:
    path = f"/models/models--o--m/snapshots/{'c' * 40}"
    lacks = node(
        2,
        models=None,
        models_unknown="no model with a config.json; looked at …",
        model_roots=("/srv/my models",),
        fabric_address="fd00::2",
    )
    (found,) = judge([node(1, models=whole(path)), lacks], intent=INTENT)
    assert found.id == "MODEL_MISSING"
    assert found.remedy == (
        "on spark-1: rsync -aH --partial --mkpath --info=progress2 /models/models--o--m/ "
        "'[fd00::2]:/srv/my models/models--o--m/' (184.0 GiB, about 8 min)"
    )


def test_what_no_node_has_is_fetched() -> None:
    lacks = [node(n, models=None, models_unknown="no model with a config.json") for n in (1, 2)]
    found = judge(lacks, intent=INTENT)
    assert [one.id for one in found] == ["MODEL_MISSING"] * 2
    assert found[1].remedy == (
        f"no node has it; on spark-2: HF_HUB_CACHE=/models hf download o/m --revision {'c' * 40}"
    )


def test_nothing_is_copied_from_a_damaged_one_or_from_the_same_machine() -> None:
    defect = CheckpointDefect("link", "/models/big/x", "/models/big/x is a link to nothing")
    damaged = ModelsFound(replace(whole().model, defects=(defect,)))
    for other in (node(1, models=damaged), node(1, address="10.0.0.2")):
        found = judge([other, node(2, models=damaged)], intent=INTENT)
        assert found
        assert not any("rsync" in one.remedy for one in found)


@pytest.mark.parametrize(("odd", "with_it"), [(2, "spark-1, spark-3"), (1, "spark-2, spark-3")])
def test_the_odd_one_out_is_named(odd: int, with_it: str) -> None:
    gang = [node(n) for n in (1, 2, 3)]
    gang[odd - 1] = machine_of(odd, engines=(EngineVersions("default", "3.12.3", {"vllm": "0.24.0"}, "bb"),))
    (found,) = judge(gang, intent=INTENT)
    assert (found.id, found.node) == ("ENGINE_SKEW", f"spark-{odd}")
    assert found.evidence == f"vLLM: 0.24.0 on spark-{odd}, 0.25.1 on {with_it}"


def test_detectors_of_the_watch_judge_as_well() -> None:
    ids = {
        found.id: (found.severity, found.node)
        for found in judge(
            [
                node(1),
                machine_of(
                    2,
                    cma_total=0,
                    cma_free=940604 << 10,
                    driver_library="580.126.09",
                    stale=(StaleFile("/dev/shm/vllm_offload_2510ed76.mmap", 17 << 30),),
                ),
                node(3, clock_off_s=-400.0),
            ]
        )
    }
    assert ids == {
        "KHO_CMA": (Severity.BLOCK, "spark-2"),
        "DRIVER_MISMATCH": (Severity.BLOCK, "spark-2"),
        "STALE_SHM": (Severity.WARN, "spark-2"),
        "CLOCK_OFF": (Severity.WARN, "spark-3"),
    }


def test_blocks_come_first_and_a_waived_one_blocks_nothing() -> None:
    orphan = ProcessFacts(900, "VLLM::EngineCore", parent=1, gpu_bytes=104277 << 20)
    gang = [node(1), machine_of(2, processes=(orphan,), kernel="6.11.0")]
    found = judge(gang, intent=INTENT)
    assert [one.id for one in found] == ["ORPHAN_ENGINECORE", "HOST_SKEW"]
    assert found[0].remedy == "on spark-2: kill -9 900"
    assert [one.id for one in blocks_of(found)] == ["ORPHAN_ENGINECORE"]
    waived = judge(gang, intent=replace(INTENT, forced=("ORPHAN_ENGINECORE",)))
    assert blocks_of(waived) == []
    assert [(one.id, one.waived) for one in waived] == [("ORPHAN_ENGINECORE", True), ("HOST_SKEW", False)]


def test_a_local_set_is_a_guest_on_its_machine() -> None:
    stranger = ProcessFacts(900, "VLLM::EngineCore", parent=1, gpu_bytes=1 << 30)
    guest = machine_of(
        1, processes=(stranger,), cma_total=0, cma_free=4096, hostname_addresses=("127.0.1.1",)
    )
    assert judge([replace(guest, local=True)]) == ()


FACTS = NodeFacts("id-1", "spark-1", "10.0.0.1", "192.168.100.1", "enp1s0f1np1", runtimes=("systemd",))


def test_answers_are_read_for_the_rules() -> None:
    good = member_of(
        FACTS,
        {
            "facts": TaskResult("t", ok=True, result={"wall": 1.0, "kernel": "6.14"}),
            "files": TaskResult("t", ok=True, result={"model": {"path": "/models/big"}}),
        },
        clock_off_s=2.0,
    )
    assert good.machine == MachineFacts(wall=1.0, kernel="6.14")
    assert good.models == ModelsFound(Checkpoint("/models/big"))
    assert (good.runtime, good.interface_named, good.clock_off_s) == ("systemd", True, 2.0)


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (None, "it did not answer in time"),
        (TaskResult("t", ok=False, error="tasks of kind facts are not known"), "tasks of kind facts"),
        (TaskResult("t", ok=True, result={"wall": "noon"}), "not understood"),
    ],
)
def test_an_answer_that_is_none_is_told(facts: TaskResult | None, says: str) -> None:
    member = member_of(FACTS, {"facts": facts})
    assert member.machine is None
    assert says in member.machine_unknown
    (found,) = judge([member])
    assert (found.id, found.severity) == ("FACTS_UNKNOWN", Severity.WARN)


def test_a_node_that_says_nothing_of_its_files_does_not_lack_them() -> None:
    member = member_of(FACTS, {"files": None})
    assert (member.models, member.models_unknown) == (None, "")


def test_with_an_image_ranks_are_containers() -> None:
    assert member_of(FACTS, {"image": None}).runtime == "docker"
    assert member_of(FACTS, {"facts": None}).runtime == "systemd"


@pytest.mark.parametrize(
    ("gpu_bytes", "rss_bytes", "severity"),
    [
        (GIB, 0, Severity.BLOCK),
        (None, GIB, Severity.BLOCK),
        (300 << 20, 200 << 20, Severity.WARN),
        (None, 0, Severity.WARN),
    ],
)
def test_a_small_context_on_a_gpu_blocks_nothing(
    gpu_bytes: int | None, rss_bytes: int, severity: Severity
) -> None:
    """A desktop's browser has one."""
    other = ProcessFacts(900, "/usr/bin/firefox", gpu_bytes=gpu_bytes, rss_bytes=rss_bytes)
    (found,) = judge([machine_of(1, processes=(other,))])
    assert (found.id, found.severity) == ("GPU_OWNER", severity)


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """Of two Sparks with one cable, whose ends have other MTUs; their agents name no address for it."""
    trees = pair(tmp_path)
    (tmp_path / "n2/sys/class/net/enp1s0f0np0/mtu").write_text("1500\n")
    nodes = tuple(
        NodeFacts(
            f"n{n}",
            f"spark-{n}",
            f"10.0.0.{n}",
            f"10.0.0.{n}",
            engines=(EngineFacts("default", ("/opt/vllm/bin/python",), "0.33.0"),),
            memory_total=121 << 30,
            fabric=tree.discovered(),
        )
        for n, tree in enumerate(trees, 1)
    )
    profile = "schema: sparkd/v1\nname: p\nmodel: {path: /models/big}\nlayout: {tp: 2}\n"
    intent = resolve(parse_source(profile, "p.yaml")).intent
    return build_plan("d", intent, nodes, generation=1, serial=1, api_port=8100, rendezvous_port=29600)


def test_a_copy_goes_where_ranks_meet(plan: Plan) -> None:
    gang = [node(n, fabric_address=f"10.0.0.{n}") for n in (1, 2)]
    gang[1] = replace(gang[1], models=None, models_unknown="no model with a config.json")
    remedies = {found.id: found.remedy for found in judge(gang, plan, INTENT)}
    assert "/models/big/ 192.168.100.2:/models/big/" in remedies["MODEL_MISSING"]


def test_a_network_of_long_ago_blocks_nothing(plan: Plan) -> None:
    asked = [node(1), node(2)]
    (found,) = judge(asked, plan, INTENT)
    assert (found.id, found.severity, found.node) == ("MTU_MISMATCH", Severity.BLOCK, "spark-2")
    asked[0] = replace(asked[0], machine=None, machine_unknown="it did not answer in time")
    found = next(one for one in judge(asked, plan, INTENT) if one.id == "MTU_MISMATCH")
    assert found.severity is Severity.WARN
    assert "of spark-1 as it was when its agent started" in found.evidence
