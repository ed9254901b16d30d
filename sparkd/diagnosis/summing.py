"""What rules read out of a collective probe."""

from sparkd.diagnosis.evidence import Evidence
from sparkd.records.collective import CollectiveTest


def of_the_fabric(evidence: Evidence) -> CollectiveTest | None:
    """A probe that broke between its ranks: each of them had torch and a device, and lived to try."""
    test = evidence.collective
    if test is None or not test.over or test.passed:
        return None
    if any(rank.unable or rank.stage == "started" for rank in test.ranks):
        return None
    return test


def in_words(test: CollectiveTest) -> str:
    """`rank 0 on a met, rank 1 on b imported: RuntimeError: …`."""
    told = []
    for rank in test.ranks:
        why = rank.error or rank.ended
        lives = ", its process lives" if rank.alive and rank.stage != "done" else ""
        told.append(f"rank {rank.rank} on {rank.node}: {rank.stage}{lives}" + (f" ({why})" if why else ""))
    return f"after {test.took_s:.0f} s: " + "; ".join(told)
