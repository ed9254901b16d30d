from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sparkd.profile.layers import Layer, canonical, leaves, merge, merge_layers

SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.text("ab", max_size=2))
VALUES = st.recursive(
    st.one_of(SCALARS, st.lists(SCALARS, max_size=2)),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
MAPS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


def has_null(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and any(map(has_null, value.values())))


def test_maps_merge_lists_replace_null_removes() -> None:
    base = {"a": {"x": 1, "y": [1, 2]}, "b": 1, "c": {"z": 1}}
    over = {"a": {"y": [3], "w": {"q": None, "v": 1}}, "b": None, "c": 2}
    assert merge(base, over) == {"a": {"x": 1, "y": [3], "w": {"v": 1}}, "c": 2}


@given(MAPS, MAPS)
def test_merge_laws(base: dict[str, Any], over: dict[str, Any]) -> None:
    merged = merge(base, over)
    assert not has_null(merged)
    assert merge(merged, over) == merged
    assert merge(merged, {}) == merged
    assert merge({}, over) == merge(over, {}) or has_null(over)
    for path, value in leaves(over).items():
        if value is not None and value != {} and not has_null(over):
            assert leaves(merged)[path] == value


@given(MAPS, MAPS)
def test_what_the_upper_layer_does_not_name_stays(base: dict[str, Any], over: dict[str, Any]) -> None:
    merged = merge(base, over)
    for key, value in merge(base, {}).items():
        if key not in over:
            assert merged[key] == value


@given(MAPS, MAPS)
def test_every_leaf_has_the_origin_of_the_layer_that_says_it(
    base: dict[str, Any], over: dict[str, Any]
) -> None:
    data, origins = merge_layers([Layer("profile", "low", base), Layer("set", "high", over)])
    assert origins.keys() == leaves(data).keys()
    said = leaves(merge({}, over))
    for path, label in origins.items():
        assert label == ("high" if path in said else "low")


def test_arguments_get_their_canonical_names() -> None:
    args = {"max_model_len": 1, "compilation-config.mode": 3, "compilation_config.level.x": 2, "new": 1}
    layer, problems = canonical(Layer("profile", "profile", {"engine": {"args": args}}))
    assert problems == []
    assert layer.data["engine"]["args"] == {
        "max-model-len": 1,
        "compilation-config": {"mode": 3, "level": {"x": 2}},
        "new": 1,
    }


def test_one_argument_in_two_spellings_is_a_problem() -> None:
    args = {
        "max_model_len": 1,
        "max-model-len": 2,
        "-n": 1,
        "--seed": 1,
        "no-enforce-eager": True,
        "hf-overrides": "x",
        "hf-overrides.a": 1,
    }
    _, problems = canonical(Layer("profile", "profile", {"engine": {"args": args}}))
    assert [path[-1] for path, _ in problems] == [
        "max-model-len", "-n", "--seed", "no-enforce-eager", "hf-overrides.a",
    ]  # fmt: skip


def test_a_null_in_an_upper_layer_removes_through_a_dotted_key() -> None:
    low, _ = canonical(
        Layer("profile", "low", {"engine": {"args": {"compilation-config": {"mode": 3, "x": 1}}}})
    )
    high, _ = canonical(Layer("set", "high", {"engine": {"args": {"compilation_config.mode": None}}}))
    data, _ = merge_layers([low, high])
    assert data["engine"]["args"] == {"compilation-config": {"x": 1}}
