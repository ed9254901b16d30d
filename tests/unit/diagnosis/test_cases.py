"""Every rule on what was recorded for it: it speaks in a hit and is silent in a miss."""

from pathlib import Path

import pytest

from sparkd.diagnosis.catalogue import catalogue, judge
from sparkd.diagnosis.rule import Reported
from tests.bed.cases import case_folders, evidence_of

CASES = case_folders()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parent.name}/{case.name}")
def test_the_rule_speaks_when_it_should(case: Path) -> None:
    rule = catalogue()[case.parent.name]
    word, _, _ = case.name.partition("-")
    assert word in {"hit", "miss"}
    evidence = evidence_of(case)
    found = [one.verdict for one in judge(evidence, [rule])]
    # A rule about lines may be the meaning of what the planner or a detector finds as well.
    found += [one for one in evidence.verdicts if one.id == rule.id]
    told = [f"{one.title} | {one.evidence}" for one in found]
    assert bool(found) == (word == "hit"), told
    for one in found:
        assert one.evidence, "what was seen is the half of a verdict"
        assert one.cause or rule.cause
        assert one.remedy or rule.remedy


def test_every_rule_that_judges_by_itself_has_cases_of_both_sorts() -> None:
    words = {(case.parent.name, case.name.partition("-")[0]) for case in CASES}
    lacking = [
        f"{rule.id}: {word}"
        for rule in catalogue().values()
        if not isinstance(rule.match, Reported)
        for word in ("hit", "miss")
        if (rule.id, word) not in words
    ]
    assert not lacking
