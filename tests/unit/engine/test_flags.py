"""Flags in canonical form: whatever sparkd owns is recognised however it is spelled."""

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.engine import flags
from sparkd.engine.flags import KNOWN, parse_words, render, resolve, value_problem, whole_number
from sparkd.engine.owned import NEEDS_TRUST, OWNED, owned_reason

OWNED_FLAGS = sorted(name for name in KNOWN if owned_reason(name) is not None)
FREE_FLAGS = sorted(name for name in KNOWN if owned_reason(name) is None)
PLAIN_FREE = [name for name in FREE_FLAGS if KNOWN[name][0] == "one"]


@pytest.mark.parametrize(
    "spelling",
    [
        "--nnodes",
        "--nnodes=2",
        "-n",
        "-n2",
        "-n=2",
        "nnodes",
        "--node-rank",
        "--node_rank",
        "--node-ra",
        "--node_rank=1",
        "-r1",
        "-r",
        "--headl",
        "--headless",
        "--no-headless",
        "--headless.x",
        "--HEADLESS",
        "--Headless",
        "--head-less",
        "-tp",
        "-t",
        "tp",
        "--tp",
        "-pp=2",
        "-dp",
        "-dpl",
        "-d",
        "--master_addr",
        "--master-p",
        "--host",
        "--port=1",
        "--served_model-name",
        "--served-m",
        "--distributed-executor-b",
        "--distributed_executor_backend=ray",
        "--api-key",
        "--api-server-count",
        "-asc",
        "--config",
        "--model",
        "--data-parallel-anything-new",
        "--uds",
        "--ssl-keyfile",
        "--help",
        "-h",
        "-v",
        "--omni",
    ],
)
def test_every_spelling_of_an_owned_flag_is_refused(spelling: str) -> None:
    if spelling.startswith("-"):
        given_, problems = parse_words([spelling])
        assert not given_
        assert len(problems) == 1
    if "=" not in spelling:
        assert resolve(spelling).problem is not None


@st.composite
def spellings(draw: st.DrawFn, name: str) -> str:
    """One way to write a long flag that vLLM's parser would accept, or that a person would think it does."""
    text = "".join(draw(st.sampled_from("-_")) if letter == "-" else letter for letter in name)
    if draw(st.booleans()):
        shortest = next(n for n in range(1, len(name) + 1) if _is_unique(name[:n], name))
        text = text[: draw(st.integers(shortest, len(name)))]
    if draw(st.booleans()):
        text = f"no-{text}"
    if draw(st.booleans()):
        text = f"{text}.{draw(st.from_regex('[a-z_]{1,8}', fullmatch=True))}"
    if draw(st.booleans()):
        text = f"{text}={draw(st.text(max_size=8))}"
    return f"--{text}"


def _is_unique(prefix: str, name: str) -> bool:
    return sum(known.startswith(prefix) for known in KNOWN) == 1 or prefix == name


@given(st.sampled_from(OWNED_FLAGS).flatmap(spellings), st.lists(st.text(max_size=6), max_size=2))
def test_no_spelling_of_an_owned_flag_gets_through(spelling: str, values: list[str]) -> None:
    words, problems = parse_words([spelling, *values])
    assert problems
    assert not any(owned_reason(word.flag.name) for word in words)


@given(
    st.lists(
        st.one_of(st.sampled_from(["-tp", "--headless", "--x", "--no-x", "-O3", "a"]), st.text(max_size=12))
    )
)
def test_any_words_are_read_or_refused_without_owned_flags(words: list[str]) -> None:
    given_, _ = parse_words(words)
    for argument in given_:
        assert owned_reason(argument.flag.name) is None
        for rendered in render(argument.flag.name, argument.value):
            assert all(isinstance(word, str) for word in rendered)


@pytest.mark.parametrize(
    ("spelling", "hint"),
    [
        ("enforce-eagre", "enforce-eager"),
        ("max-modellen", "max-model-len"),
        ("max-model", "max-model-len"),
        ("gpu-memory-utilisation", "gpu-memory-utilization"),
        ("q", "quantization"),
        ("Enforce-Eager", "enforce-eager"),
    ],
)
def test_a_near_miss_is_refused_with_the_nearest_name(spelling: str, hint: str) -> None:
    problem = resolve(spelling).problem
    assert problem is not None
    assert hint in problem


@pytest.mark.parametrize("name", ["prefill-compute-share", "gdn-decode-kernel", "wildly-new"])
def test_a_flag_that_resembles_none_is_allowed_as_unknown(name: str) -> None:
    flag = resolve(name)
    assert flag.problem is None
    assert not flag.known


@pytest.mark.parametrize("name", FREE_FLAGS)
def test_every_free_flag_of_the_table_may_be_written(name: str) -> None:
    for spelling in (name, name.replace("-", "_"), f"--{name}"):
        assert resolve(spelling) == flags.Flag(name, flags.kind_of(name))


def test_owned_and_trust_names_exist_in_the_table() -> None:
    for name in [*OWNED, *NEEDS_TRUST]:
        if name.endswith("*"):
            assert any(known.startswith(name[:-1]) for known in KNOWN), name
        else:
            assert name in KNOWN, name


def test_words_are_read_as_vllm_reads_them() -> None:
    given_, problems = parse_words(
        [
            "-O3",
            "-q",
            "awq",
            "--no-enable-prefix-caching",
            "-cc.mode",
            "3",
            "--max-model-len=-1",
            "--seed",
            "-1",
            "--lora-modules",
            "a=b",
            "c=d",
            "--middleware",
            "m1",
            "--hf_overrides",
            '{"a":1}',
            "--new",
            "x",
            "y",
            "--newer",
        ]
    )
    assert problems == []
    assert [(argument.flag.name, argument.value) for argument in given_] == [
        ("optimization-level", "3"),
        ("quantization", "awq"),
        ("enable-prefix-caching", False),
        ("compilation-config", 3),
        ("max-model-len", "-1"),
        ("seed", "-1"),
        ("lora-modules", ["a=b", "c=d"]),
        ("middleware", ["m1"]),
        ("hf-overrides", '{"a":1}'),
        ("new", ["x", "y"]),
        ("newer", True),
    ]
    assert given_[4].flag.keys == ()
    assert given_[3].flag.keys == ("mode",)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["tiny"], "the model comes from the profile"),
        (["--max-num-seqs"], "needs a value"),
        (["--max-num-seqs", "--enforce-eager"], "needs a value"),
        (["--enforce-eager=true"], "takes no value"),
        (["--enforce-eager", "true"], "the model comes from the profile"),
        (["--no-dtype"], "no switch"),
        (["--dtype.x", "1"], "no dotted keys"),
        (["-x"], "no short flag"),
        (["--a\0b"], "not the name of a flag"),
        (["--new", "a\0b"], "no process argument can carry"),
        (["--new", "\udcff"], "no process argument can carry"),
    ],
)
def test_words_that_vllm_would_not_take_are_refused(words: list[str], text: str) -> None:
    assert text in " ".join(parse_words(words)[1])


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("enforce-eager", True, [("--enforce-eager",)]),
        ("enable-prefix-caching", False, [("--no-enable-prefix-caching",)]),
        ("max-model-len", 512, [("--max-model-len", "512")]),
        ("max-model-len", -1, [("--max-model-len=-1",)]),
        ("gpu-memory-utilization", 0.85, [("--gpu-memory-utilization", "0.85")]),
        ("speculative-config", {"a": ["é", None]}, [("--speculative-config", '{"a": ["é", null]}')]),
        ("allowed-origins", ["*"], [("--allowed-origins", '["*"]')]),
        ("cudagraph-capture-sizes", [1, 2], [("--cudagraph-capture-sizes", "1", "2")]),
        ("middleware", ["a", "b"], [("--middleware", "a"), ("--middleware", "b")]),
        ("chat-template", "-x\n", [("--chat-template=-x\n",)]),
        ("lora-modules", ["-x"], [("--lora-modules=-x",)]),
        ("chat-template", "", [("--chat-template", "")]),
    ],
)
def test_values_become_words(name: str, value: object, words: list[tuple[str, ...]]) -> None:
    assert value_problem(resolve(name), value) is None
    assert list(render(name, value)) == words


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enforce-eager", "yes"), ("enforce-eager", 1), ("disable-log-requests-x", "a\0"),
        ("aggregate-engine-logging", False), ("dtype", True), ("dtype", ["a"]), ("dtype", {"a": 1}),
        ("lora-modules", ["a", "-b"]), ("lora-modules", []), ("lora-modules", [True]),
        ("lora-modules", ["a", "--headless"]), ("hf-overrides", {"a": ["\ud800"]}),
    ],
)  # fmt: skip
def test_values_that_would_become_other_words_are_refused(name: str, value: object) -> None:
    flag = flags.Flag(name, flags.kind_of(name))
    assert value_problem(flag, value) is not None


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@given(st.dictionaries(st.sampled_from(PLAIN_FREE), TEXT, max_size=5))
def test_any_text_survives_verbatim_through_argparse(args: dict[str, str]) -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in PLAIN_FREE:
        parser.add_argument(f"--{name}", dest=name)
    words = [word for name, value in args.items() for group in render(name, value) for word in group]
    parsed = vars(parser.parse_args(words))
    assert {name: value for name, value in parsed.items() if value is not None} == args


@pytest.mark.parametrize(
    ("spelling", "name", "problem"),
    [
        ("--disable-prefix-caching", "enable-prefix-caching", False),
        ("--disable_prefix_caching", "enable-prefix-caching", False),
        ("enable-chunked-mm-input", "disable-chunked-mm-input", False),
        ("--disable-elastic-ep", "enable-elastic-ep", True),
    ],
)
def test_the_inverse_spelling_of_newer_releases_negates(spelling: str, name: str, problem: bool) -> None:
    flag = resolve(spelling)
    assert (flag.name, flag.negated, flag.problem is not None) == (name, True, problem)
    if spelling.startswith("--") and not problem:
        (given_,), _ = parse_words([spelling])
        assert render(given_.flag.name, given_.value) == ((f"--no-{name}",),)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (32768, 32768),
        ("32768", 32768),
        ("32k", 32_000),
        ("32K", 32_768),
        ("1.5m", 1_500_000),
        ("1M", 1 << 20),
        ("1.5M", None),
        ("auto", None),
        ("-1", None),
        (None, None),
        (True, None),
        ("", None),
    ],
)
def test_counts_are_read_as_vllm_reads_them(value: object, number: int | None) -> None:
    assert whole_number(value) == number
