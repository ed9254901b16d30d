from collections.abc import Iterator

from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.rule import Found, Rule
from sparkd.diagnosis.summing import in_words, of_the_fabric


def _match(evidence: Evidence) -> Iterator[Found]:
    """Its process lives and has loaded torch, and never came to where the others wait."""
    test = of_the_fabric(evidence)
    if test is None:
        return
    arrived = [rank for rank in test.ranks if rank.stage not in {"started", "imported"}]
    for rank in test.ranks:
        if rank.stage == "imported":
            yield Found(
                in_words(test),
                rank.rank,
                rank.node,
                title=f"rank {rank.rank} did not arrive at the rendezvous"
                + (f"; {len(arrived)} of {len(test.ranks)} did" if arrived else ", nor did any other"),
            )


RULE = Rule(
    id="COLLECTIVE_ABSENT",
    title="a rank of the collective probe did not arrive",
    cause="what it sends does not reach rank 0's fabric address: a firewall, a route, an address that another machine has too",
    remedy="`sparkd fabric test` names the direction; `ip route get ADDRESS` on that node; `--force COLLECTIVE_ABSENT` starts all the same",
    match=_match,
    kind="state",
)
