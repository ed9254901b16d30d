"""The odd bytes are named with their node, their file and their place."""

import pytest

from sparkd.preflight.hashes import Digests, compare
from sparkd.records.checkpoint import Checkpoint, ModelsFound
from sparkd.records.preflight import Member
from sparkd.records.verdict import Severity, Verdict

SHARD = "model-00002-of-00003.safetensors"
DRAFT = ("draft", "model.safetensors")


def member(name: str) -> Member:
    model = Checkpoint("/models/m", files={SHARD: 3 << 30})
    draft = Checkpoint("/models/d", files={DRAFT[1]: 10})
    return Member(name, address=name, fabric_address="10.0.0.9", models=ModelsFound(model, {"draft": draft}))


def told(**digests: Digests) -> list[Verdict]:
    members = [member(name) for name in digests]
    return list(compare(members, digests, 1 << 30))


def test_equal_bytes_are_no_news() -> None:
    same = {("", SHARD): ["a", "b", "c"], DRAFT: ["d"]}
    assert told(a=same, b=same, c=same) == []
    assert told(a=same, b={DRAFT: ["d"]}) == [], "what could not be read is told elsewhere"


def test_the_odd_one_of_three_is_named_with_the_place_and_a_command() -> None:
    right = {("", SHARD): ["a", "b", "c"]}
    (one,) = told(a=right, b={("", SHARD): ["a", "b", "x"]}, c=right)
    assert (one.id, one.node, one.severity) == ("CHECKPOINT_BYTES", "b", Severity.BLOCK)
    assert f"after the first {2 << 30:,}" in one.evidence
    assert "cannot tell" not in one.evidence
    assert one.remedy.startswith(f'on b: rm "$(readlink -f /models/m/{SHARD})"; then on a: rsync ')


def test_of_two_nobody_knows_which_is_right() -> None:
    (one,) = told(a={("", SHARD): ["a"]}, b={("", SHARD): ["x"]})
    assert "which of the two is right a hash cannot tell" in one.evidence


@pytest.mark.parametrize("other", [["x"], ["d", "e"], []])
def test_a_further_model_counts_as_well(other: list[str]) -> None:
    (one,) = told(a={DRAFT: ["d"]}, b={DRAFT: ["d"]}, c={DRAFT: other})
    assert one.node == "c"
    assert "/models/d/model.safetensors" in one.evidence
