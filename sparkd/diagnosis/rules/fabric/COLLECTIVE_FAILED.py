from collections.abc import Iterator

from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.rule import Found, Rule
from sparkd.diagnosis.summing import in_words, of_the_fabric
from sparkd.records.collective import STAGES, CollectiveTest


def _match(evidence: Evidence) -> Iterator[Found]:
    """All met, and then a group, a sum or a larger sum did not come about."""
    test = of_the_fabric(evidence)
    if test is None or any(rank.stage in {"started", "imported"} for rank in test.ranks):
        return
    failed = [rank for rank in test.ranks if rank.error]
    behind = min(test.ranks, key=lambda one: STAGES.index(one.stage))
    rank = failed[0] if failed else behind
    alone = len(failed) == 1 or [one.stage for one in test.ranks].count(behind.stage) == 1
    yield Found(
        in_words(test),
        rank.rank if alone else None,
        rank.node if alone else None,
        title=_TITLES[behind.stage],
        cause=_cause(test),
    )


_TITLES = {
    "met": "the ranks met, but could not form a group",
    "joined": "the first sum over all ranks did not come about",
    "summed": "a small sum over all ranks worked, a larger one did not",
}


def _cause(test: CollectiveTest) -> str:
    if test.steps:
        most = test.steps[-1].bytes
        return (
            f"sums of {most} bytes pass, larger ones do not: packets of the full MTU are lost on the way, "
            "or a link breaks under load"
        )
    return ""


RULE = Rule(
    id="COLLECTIVE_FAILED",
    title="the ranks cannot do an all-reduce",
    cause="beside the rendezvous NCCL and gloo connect to ports, and over cards, of their own: a firewall, a GID index, locked memory, another MTU",
    remedy="`sparkd fabric test` tries TCP, MTU and each pair; `sparkd doctor` compares versions; `--force COLLECTIVE_FAILED` starts all the same",
    match=_match,
    kind="state",
)
