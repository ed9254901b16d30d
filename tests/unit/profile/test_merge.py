from pathlib import Path

import pytest

from sparkd.errors import ProfileError, UsageError
from sparkd.profile.check import profile_of
from sparkd.profile.differences import intent_differences
from sparkd.profile.load import Source, parse_source
from sparkd.profile.merge import resolve

TEXT = """\
schema: sparkd/v1
name: two
model: {path: m}
layout: {tp: 2}
engine:
  args: {max-model-len: 512, compilation-config: {mode: 3, level: 1}, dtype: auto}
env: {A: 1, B: x}
variants:
  short: {engine: {args: {max_model_len: 128, dtype: null}}, env: {B: y}}
  four: {when: {nodes: 4}, layout: {tp: 4}}
  alone: {when: {nodes: 1}, layout: {tp: 1}}
  wrong: {when: {nodes: 3}, layout: {tp: 4}}
"""


@pytest.fixture
def two() -> Source:
    return parse_source(TEXT, "two.yaml")


def test_later_layers_win_and_every_value_knows_where_it_comes_from(two: Source) -> None:
    resolved = resolve(
        two,
        variants=["short"],
        sets=["engine.args.compilation_config.level=2", "env.A=null", "restart.budget=7"],
        engine_args=["--compilation-config.extra", "9", "--max-num-seqs=8"],
    )
    intent = resolved.intent
    assert intent.profile["engine"]["args"] == {
        "max-model-len": 128,
        "compilation-config": {"mode": 3, "level": 2, "extra": 9},
        "max-num-seqs": "8",
    }
    assert intent.profile["env"] == {"B": "y"}
    assert intent.profile["restart"] == {"budget": 7, "backoff_s": 5.0, "backoff_max_s": 300.0}
    said = {key: origin for key, origin in intent.origins.items() if origin != "default"}
    assert said == {
        "schema": "profile",
        "name": "profile",
        "model.path": "profile",
        "layout.tp": "profile",
        "engine.args.max-model-len": "variant short",
        "engine.args.compilation-config.mode": "profile",
        "engine.args.compilation-config.level": "--set engine.args.compilation_config.level=2",
        "engine.args.compilation-config.extra": "-- --compilation-config.extra 9",
        "engine.args.max-num-seqs": "-- --max-num-seqs=8",
        "env.B": "variant short",
        "restart.budget": "--set restart.budget=7",
    }
    assert profile_of(intent) == resolved.profile
    assert "variants" not in intent.profile


def test_repeated_append_flags_add_up_and_other_flags_may_not_repeat(two: Source) -> None:
    trusted = ["model.trust=true"]
    resolved = resolve(two, sets=trusted, engine_args=["--middleware", "a", "--middleware", "b"])
    assert resolved.profile.engine.args["middleware"] == ["a", "b"]
    with pytest.raises(ProfileError, match="seed is given twice"):
        resolve(two, engine_args=["--seed", "1", "--seed", "2"])


def test_all_problems_of_the_command_line_are_named_with_their_words(two: Source) -> None:
    with pytest.raises(ProfileError) as caught:
        resolve(
            two,
            sets=[
                "layout.tp=x",
                "engin.args.a=1",
                "engine.args.port=1",
                "env.LD_X=1",
                "name=y",
                "oops",
                "a=[",
                ".=1",
            ],
            engine_args=["--node-ra", "1", "--worker-cls", "x", "--max-num-seqs"],
        )
    found = "\n".join(caught.value.problems)
    for expected in (
        '--set layout.tp=x: layout.tp: must be a whole number, not "x"',
        "--set engin.args.a=1: engin: unknown key; did you mean engine?",
        "--set engine.args.port=1: engine.args.port: write api.port instead",
        "--set env.LD_X=1: env.LD_X: may not be set in a profile",
        "--set name=y: name cannot be set",
        "--set oops: write KEY=VALUE",
        "--set a=[: not YAML",
        "--set .=1: write KEY=VALUE",
        "--node-ra: looks like node-rank",
        "-- --worker-cls x: engine.args.worker-cls: it imports code by name; it needs `model.trust: true`",
        "--max-num-seqs: needs a value",
    ):
        assert expected in found
    assert len(caught.value.problems) == 11


def test_a_set_that_takes_away_what_is_needed_is_named(two: Source) -> None:
    with pytest.raises(ProfileError, match=r"--set model.path=null: model: needs `path`"):
        resolve(two, sets=["model.path=null"])


def test_variants_keep_to_their_topology(two: Source) -> None:
    assert resolve(two, variants=["four"]).profile.layout.ranks == 4
    with pytest.raises(UsageError, match="variant wrong is for 3 nodes; this layout has 4"):
        resolve(two, variants=["wrong"])
    with pytest.raises(UsageError, match="did you mean short"):
        resolve(two, variants=["shrot"])


def test_the_digest_is_of_what_is_asked_not_of_who_said_it(two: Source) -> None:
    plain = resolve(two).intent
    assert resolve(two, sets=["layout.tp=2"]).intent.digest() == plain.digest()
    assert resolve(two, sets=["engine.args.max-model-len=513"]).intent.digest() != plain.digest()
    assert resolve(two, nodes=["a", "b"]).intent.digest() != plain.digest()


def test_differences_are_lines_of_key_old_and_new(two: Source) -> None:
    old = resolve(two).intent
    assert intent_differences(old, resolve(two, sets=["layout.tp=2"]).intent) == ()
    new = resolve(two, variants=["short"], sets=["env.C=z"], nodes=["b", "a"], image="i:1").intent
    assert intent_differences(old, new) == (
        'engine.args.dtype: "auto" -> (not set)',
        "engine.args.max-model-len: 512 -> 128",
        'env.B: "x" -> "y"',
        'env.C: (not set) -> "z"',
        "nodes: any -> b, a",
        "image: none -> i:1",
    )


def test_intents_that_differ_in_digest_have_a_difference_to_show(two: Source) -> None:
    for change in (
        {"sets": ["engine.args.max-model-len='512'"]},
        {"engine_args": ["--max-model-len", "512"]},
        {"sets": ["engine.args.wildly-new=true"]},
        {"nodes": ["a", "b"]},
        {"image": "x"},
    ):
        old, new = resolve(two).intent, resolve(two, **change).intent  # type: ignore[arg-type]
        assert old.digest() != new.digest()
        assert intent_differences(old, new), change


def test_a_stored_profile_that_is_no_longer_valid_is_named(two: Source) -> None:
    from dataclasses import replace

    intent = resolve(two).intent
    broken = replace(intent, profile={**intent.profile, "layout": {"tp": "x"}})
    with pytest.raises(ProfileError, match=r"intent of two: layout.tp: must be a whole number"):
        profile_of(broken)


def test_the_committed_json_schema_is_current() -> None:
    from sparkd.profile.schema import schema_text

    committed = Path(__file__).parents[3] / "profiles" / "schema.json"
    assert committed.read_text() == schema_text(), "sparkd profiles schema > profiles/schema.json"


def test_every_field_of_the_schema_is_described() -> None:
    from sparkd.profile.schema import json_schema

    schema = json_schema()
    for name, section in [("Profile", schema), *schema["$defs"].items()]:
        for field, details in section.get("properties", {}).items():
            assert details.get("description"), f"{name}.{field}"
