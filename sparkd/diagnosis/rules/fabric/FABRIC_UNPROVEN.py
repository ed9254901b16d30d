from collections.abc import Iterator

from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.rule import Found, Rule
from sparkd.diagnosis.summing import in_words
from sparkd.records.verdict import Severity


def _match(evidence: Evidence) -> Iterator[Found]:
    test = evidence.collective
    if test is None or not test.over or test.passed:
        return
    unable = [rank for rank in test.ranks if rank.unable]
    for rank in unable:
        yield Found(rank.unable, rank.rank, rank.node)
    for rank in test.ranks if not unable else ():
        if rank.stage == "started":
            yield Found(in_words(test), rank.rank, rank.node)


RULE = Rule(
    id="FABRIC_UNPROVEN",
    title="an all-reduce could not be tried here",
    cause="the engine there has no torch that loads, its node did not start it, or it was ended or too slow; of the fabric it says nothing",
    remedy="`sparkd fabric test` tries it again and shows how far each rank comes; the launch goes on",
    match=_match,
    kind="state",
    severity=Severity.WARN,
)
