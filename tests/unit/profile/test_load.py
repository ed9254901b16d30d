import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.errors import ProfileError
from sparkd.profile.load import parse_source

GOOD = """\
schema: sparkd/v1
name: good
model: {path: tiny}
layout: {tp: 2}
engine:
  args:
    max-model-len: 512
variants:
  big: {when: {nodes: 4}, layout: {tp: 4}}
"""


def problems_of(text: str) -> tuple[str, ...]:
    with pytest.raises(ProfileError) as caught:
        parse_source(text, "t.yaml")
    return caught.value.problems


def test_a_good_profile_is_read_with_its_variants() -> None:
    source = parse_source(GOOD, "t.yaml")
    assert source.name == "good"
    assert source.profile.layout.ranks == 2
    assert list(source.variants) == ["big"]


def test_all_errors_of_a_file_are_reported_with_line_key_and_nearest_name() -> None:
    text = """\
schema: sparkd/v1
name: t
model: {pth: x}
layuot: {tp: 2}
layout: {tp: two, dp: 2}
engine:
  args:
    max_model_len: 3
    headl: true
    tp: 2
    enforce-eager: "yes"
    trust-remote-code: true
    enforce-eagre: true
env: {LD_PRELOAD: x, https_proxy: y, A: 1.5}
restart: {budget: 3, budget: 4}
variants:
  big:
    when: {node: 2}
    lay: {}
    layout: {tp: 0}
    engine: {args: {host: x}}
    env: {PYTHONPATH: x}
"""
    found = problems_of(text)
    for expected in (
        "t.yaml:3: model.pth: unknown key; did you mean path?",
        "t.yaml:4: layuot: unknown key; did you mean layout?",
        't.yaml:5: layout.tp: must be a whole number, not "two"',
        "t.yaml:5: layout.dp: data parallelism is not supported yet; leave it out or write 1",
        "t.yaml:9: engine.args.headl: looks like headless: sparkd sets it on every rank but rank 0",
        "t.yaml:10: engine.args.tp: write layout.tp instead",
        't.yaml:11: engine.args.enforce-eager: is a switch: write true or false, not "yes"',
        "t.yaml:13: engine.args.enforce-eagre: did you mean enforce-eager?",
        "t.yaml:14: env.A: write a text or a whole number (quote it)",
        "t.yaml:15: restart.budget: given twice (first in line 15)",
        "t.yaml:18: variants.big.when.node: unknown key; did you mean nodes?",
        "t.yaml:19: variants.big.lay: unknown key; did you mean layout?",
        "t.yaml:20: variants.big.layout.tp: must be at least 1, not 0",
        "t.yaml:21: variants.big.engine.args.host: write api.host instead",
    ):
        assert expected in found
    for start in (
        "t.yaml:12: engine.args.trust-remote-code: it runs code",
        "t.yaml:14: env.LD_PRELOAD: may not be set",
        "t.yaml:14: env.https_proxy: may not be set",
        "t.yaml:22: variants.big.env.PYTHONPATH: may not be set",
    ):
        assert any(problem.startswith(start) for problem in found), start
    assert len(found) == 18


@pytest.mark.parametrize("content", ["", "a", "[]", "1", "null", "- a"])
def test_what_is_no_map_is_refused(content: str) -> None:
    assert problems_of(content)


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (("schema: sparkd/v1", "schema: sparkd/v2"), "schema: must be 'sparkd/v1'"),
        (("name: good", "name: Good_1"), "name: "),
        (("name: good\n", ""), "name: is required"),
        (("{path: tiny}", "{path: a, id: b/c, revision: x}"), "model"),
        (("{path: tiny}", "{id: b/c}"), "go together"),
        (("{path: tiny}", "{id: b/c, revision: main}"), "40 hex digits"),
        (("{path: tiny}", "{id: -x/c, revision: %s}" % ("a" * 40)), "org/name"),
        (("tp: 2", "tp: 0"), "layout.tp"),
        (("tp: 2", "tp: true"), "layout.tp: must be a whole number, not true"),
        (("tp: 2", "tp: 2.0"), "layout.tp: must be a whole number, not 2.0"),
        (("512", "512\n  vllm: yes"), "engine.vllm: write a range"),
        (("layout:", "api: {host: spark-1}\nlayout:"), "api.host"),
        (("layout:", "api: {port: 80}\nlayout:"), "api.port"),
        (("layout:", "memory: {weights_gib: -1}\nlayout:"), "memory.weights_gib"),
        (("layout:", "env: {'1A': x}\nlayout:"), "env.1A: is not the name of an environment variable"),
        (("layout:", "env: {A: true}\nlayout:"), "env.A: write a text"),
        (("nodes: 4", "nodes: four"), "variants.big.when.nodes: must be a whole number"),
        (("layout: {tp: 4}", "layout: 4"), "variants.big.layout: must be a map"),
    ],
)  # fmt: skip
def test_one_fault_is_one_problem_that_names_it(edit: tuple[str, str], says: str) -> None:
    assert edit[0] in GOOD
    assert says in "\n".join(problems_of(GOOD.replace(*edit)))


def test_what_a_stated_version_no_longer_has_is_refused_with_its_replacement_and_line() -> None:
    text = """\
schema: sparkd/v1
name: t
model: {path: x}
engine:
  vllm: ">=0.24,<0.25 | >=0.33,<0.34"
  args:
    override_attention_dtype: fp8
env:
  VLLM_USE_FLASHINFER_MOE_FP4: 1
variants:
  old: {engine: {vllm: "<0.25", args: {watchdog-config: {}}}}
"""
    assert problems_of(text) == (
        (
            "t.yaml:7: engine.args.override-attention-dtype: vLLM 0.33 has no --override-attention-dtype any "
            "more, and the profile is for it; leave it out: it was for ROCm only"
        ),
        (
            "t.yaml:9: env.VLLM_USE_FLASHINFER_MOE_FP4: vLLM 0.24 has no VLLM_USE_FLASHINFER_MOE_FP4 any "
            "more, and the profile is for it; write the argument moe-backend"
        ),
        (
            "t.yaml:11: variants.old.engine.args.watchdog-config: vLLM has --watchdog-config from 0.33 on, "
            "and the profile is for 0.24 at most"
        ),
    )


def test_model_trust_allows_code_of_the_model() -> None:
    trusting = GOOD.replace("{path: tiny}", "{path: tiny, trust: true}")
    parse_source(trusting.replace("max-model-len: 512", "trust-remote-code: true"), "t.yaml")


PIECES = st.sampled_from(
    [
        *GOOD.splitlines(keepends=True),
        *(
            "engine: ",
            "args: {",
            "}",
            "[",
            "]",
            "null",
            "~",
            ": ",
            "- ",
            "\n",
            "  ",
            "x",
            "1e5",
            "&a ",
            "*a",
            "!t ",
        ),
        "model: null\n",
        "variants: []\n",
        "variants: {a: {engine: {args: {x.y: 1, x: 2}}}}\n",
    ]
)


def outcome(content: str | bytes) -> tuple[str, ...]:
    """The problems of a content; empty when it is a profile."""
    try:
        parse_source(content, "t.yaml")
    except ProfileError as error:
        return error.problems or ("an error without a problem",)
    return ()


@given(st.one_of(st.text(), st.binary(max_size=200), st.lists(PIECES, max_size=25).map("".join)))
def test_any_content_is_a_profile_or_a_profile_error(content: str | bytes) -> None:
    started = time.process_time()
    assert all(problem.startswith("t.yaml:") for problem in outcome(content))
    assert time.process_time() - started < 5


JSONISH = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=8,
)
SECTIONS = [
    "schema",
    "name",
    "model",
    "layout",
    "engine",
    "env",
    "mods",
    "memory",
    "ready",
    "api",
    "variants",
]


@given(st.dictionaries(st.sampled_from(SECTIONS), JSONISH, max_size=6))
def test_any_values_in_any_section_are_a_profile_error_at_worst(data: dict[str, object]) -> None:
    whole = {"schema": "sparkd/v1", "name": "t", "model": {"path": "x"}} | data
    try:
        content = msgspec.json.encode(whole)
    except (UnicodeEncodeError, OverflowError):
        return
    assert all(problem.startswith("t.yaml:") for problem in outcome(content))


@pytest.mark.parametrize(
    "line",
    [
        "systemd: {MemoryMax: 100G}",
        "memory: {memory_max: 100}",
        "memory: {max: 3}",
        "memory: {MemoryMax: 100}",
        "mem_limit: 100g",
        "engine: {cgroup: {x: 1}}",
    ],
)
def test_a_limit_that_would_not_protect_is_not_offered(line: str) -> None:
    """Case 3: whoever writes it believes in it."""
    text = f"schema: sparkd/v1\nname: p\nmodel: {{path: x}}\n{line}\n"
    with pytest.raises(ProfileError) as caught:
        parse_source(text, "p.yaml")
    blind = "does not see what a GPU takes" in str(caught.value)
    assert blind == ("{max:" not in line), caught.value


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("docker: {}", "sparkd up --image"),
        ("docker: {image: vllm}", "sparkd up --image"),
        ("container: vllm", "sparkd up --image"),
        ("engine: {image: vllm}", "sparkd up --image"),
        ("volumes: [/a]", "sparkd up --image"),
        ("systemd: {Nice: 5}", "docs/units.md"),
        ("slurm: {}", "chooses the nodes"),
        ("command: vllm serve x", "`engine.args`"),
        ("engine: {vllm_args: {}}", "`engine.args`"),
        ("environment: {A: 1}", "`env`"),
        ("network_mode: host", "`api.port`"),
    ],
)
def test_the_answer_to_another_tools_key_fits_that_key(line: str, told: str) -> None:
    with pytest.raises(ProfileError) as caught:
        parse_source(f"schema: sparkd/v1\nname: p\nmodel: {{path: x}}\n{line}\n", "p.yaml")
    assert told in str(caught.value)
    assert "control group" not in str(caught.value), "nobody asked for a limit"


@pytest.mark.parametrize("line", ["docker: {mem_limit: 9g}", "systemd: {MemoryMax: 9G}"])
def test_a_limit_below_another_tools_key_is_told_of_too(line: str) -> None:
    with pytest.raises(ProfileError, match=r"docs/(containers|units)\.md.*control group"):
        parse_source(f"schema: sparkd/v1\nname: p\nmodel: {{path: x}}\n{line}\n", "p.yaml")
