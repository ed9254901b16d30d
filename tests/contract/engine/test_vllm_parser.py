"""What we say of vLLM's command line, against the parser of the vLLM that is installed."""

import json
import subprocess
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from sparkd.engine import flag_table
from sparkd.engine.flags import KNOWN, parse_words, render, whole_number
from sparkd.engine.owned import owned_reason
from sparkd.local_facts import local_node_facts
from sparkd.profile.load import Source, parse_source
from sparkd.profile.lookup import load_profile
from sparkd.profile.merge import resolve
from sparkd.profile.plan import build_plan
from tests.bed.builtin_plans import builtin_names, builtin_plan

REPOSITORY = Path(__file__).parents[3]
ENGINE = REPOSITORY / ".venv-vllm" / "bin" / "python"

pytestmark = pytest.mark.vllm


def run(script: str, stdin: str = "") -> str:
    assert ENGINE.exists(), "no vLLM here: make vllm"
    done = subprocess.run(
        [ENGINE, REPOSITORY / "tests" / "bed" / script],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_flag_table_is_that_of_the_real_parser() -> None:
    assert Path(flag_table.__file__).read_text() == run("dump_vllm_flags.py")


def awkward() -> list[tuple[list[str], dict[str, Any]]]:
    """Command lines as plans render them, and what vLLM must read from each."""
    text = "-x --headless $HOME 'é'\n\"z\" -O3"
    cases: list[tuple[str, Any, Any]] = [
        ("chat-template", text, text),
        ("chat-template", "--omni", "--omni"),
        ("max-model-len", -1, -1),
        *(("max-model-len", text, whole_number(text)) for text in ("32k", "32K", "1.5m", "2M")),
        ("gpu-memory-utilization", 0.85, 0.85),
        ("enforce-eager", True, True),
        ("enable-prefix-caching", False, False),
        ("hf-overrides", {"a": {"b": [1, None, "é -x"]}}, {"a": {"b": [1, None, "é -x"]}}),
        ("allowed-origins", ["a", "b"], ["a", "b"]),
        ("cudagraph-capture-sizes", [1, 2, 4], [1, 2, 4]),
        ("allowed-media-domains", ["-x.y"], ["-x.y"]),
        ("middleware", ["a", "b"], ["a", "b"]),
    ]
    return [
        (
            ["serve", "/m o d\n$é", *(word for words in render(name, value) for word in words)],
            {"model_tag": "/m o d\n$é", name.replace("-", "_"): expected},
        )
        for name, value, expected in cases
    ]


# Spellings that vLLM takes for flags of sparkd's: each must be refused by us.
SPELLED = [
    *("-n2", "-n=2", "-r1", "--node-ra=1", "--node_rank=1", "--headl", "-tp=2", "--master_p=29700"),
    *("--served_m=x", "-dp=2", "-asc=1", "--uds=/x", "--ssl_keyf=x"),
]
SWITCHES = [name for name in flag_table.TABLE if KNOWN[name][0] == "switch" and not owned_reason(name)]
MIXED = """
schema: sparkd/v1
name: mixed
model: {path: /m}
engine:
  args:
    generation_config: vllm
    hf-overrides: {a: 1}
    hf_overrides.b.c: 2
    no-such-flag: null
"""


def planned(source: Source, nodes: int, *engine_args: str) -> list[list[str]]:
    """The arguments of every rank of a local plan."""
    plan = build_plan(
        source.name,
        resolve(source, engine_args=engine_args).intent,
        local_node_facts(nodes, Path("/v"), [Path("/m")]),
        generation=1,
        serial=1,
        api_port=8100,
        rendezvous_port=29600,
    )
    return [list(rank.spec.args) for rank in plan.ranks]


@pytest.fixture(scope="module")
def parsed() -> dict[str, list[Any]]:
    """Every command line of this module in one run: the imports of vLLM take most of the time."""
    plans = [builtin_plan(*asked) for asked in builtin_names()]
    lines = {
        "awkward": [line for line, _ in awkward()],
        "tiny": planned(load_profile("tiny"), 2),
        "mixed": planned(parse_source(MIXED, "mixed.yaml"), 1, "-q", "awq", "--seed=-8"),
        "built-in": [list(rank.spec.args) for plan in plans for rank in plan.ranks],
        "spelled": [["serve", "/m", word] for word in SPELLED],
        "switches": [["serve", "/m", f"--no-{name}"] for name in SWITCHES],
    }
    results = iter(json.loads(run("parse_vllm_args.py", json.dumps([*chain(*lines.values())]))))
    return {name: [next(results) for _ in group] for name, group in lines.items()}


def test_vllm_reads_awkward_values_as_they_were_meant(parsed: dict[str, list[Any]]) -> None:
    for (line, expected), result in zip(awkward(), parsed["awkward"], strict=True):
        assert result == expected, line


def test_vllm_reads_the_plan_of_the_tiny_model(parsed: dict[str, list[Any]]) -> None:
    common = {
        "model_tag": "/m/tiny",
        "served_model_name": ["tiny"],
        "tensor_parallel_size": 2,
        "nnodes": 2,
        "master_port": 29600,
        "distributed_executor_backend": "mp",
        "enforce_eager": True,
        "dtype": "bfloat16",
        "max_model_len": 512,
        "max_num_seqs": 4,
    }
    head, follower = parsed["tiny"]
    quiet = {"disable_access_log_for_endpoints": "/health,/metrics"}
    assert head == {**common, **quiet, "host": "127.0.0.1", "port": 8100}
    assert follower == {**common, "node_rank": 1, "headless": True}


def test_vllm_reads_the_commands_of_every_built_in_profile(parsed: dict[str, list[Any]]) -> None:
    refused = [result for result in parsed["built-in"] if isinstance(result, str)]
    assert refused == []
    drafts = [result["speculative_config"] for result in parsed["built-in"] if "speculative_config" in result]
    assert {draft["method"] for draft in drafts} == {"dflash", "mtp"}
    assert all(Path(draft["model"]).is_absolute() for draft in drafts if "model" in draft)


def test_vllm_reads_what_comes_from_several_layers(parsed: dict[str, list[Any]]) -> None:
    (result,) = parsed["mixed"]
    assert result["generation_config"] == "vllm"
    assert result["hf_overrides"] == {"a": 1, "b": {"c": 2}}
    assert result["quantization"] == "awq"
    assert result["seed"] == -8


def test_what_vllm_takes_for_a_flag_of_ours_is_refused(parsed: dict[str, list[Any]]) -> None:
    for word, result in zip(SPELLED, parsed["spelled"], strict=True):
        assert isinstance(result, dict), f"vLLM refuses {word}: {result}"
        changed = [key.replace("_", "-") for key in result if key != "model_tag"]
        assert [owned_reason(name) is not None for name in changed] == [True], word
        assert parse_words([word])[1], word


def test_every_switch_can_be_switched_off_as_we_render_it(parsed: dict[str, list[Any]]) -> None:
    refused = [
        name for name, result in zip(SWITCHES, parsed["switches"], strict=True) if isinstance(result, str)
    ]
    assert refused == []
