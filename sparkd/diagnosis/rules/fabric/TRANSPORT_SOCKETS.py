from collections.abc import Iterator

from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.rule import Found, Rule, reported

_REPORTED = reported("TRANSPORT_SOCKETS")


def _match(evidence: Evidence) -> Iterator[Found]:
    yield from _REPORTED(evidence)
    for rank in evidence.collective.ranks if evidence.collective is not None else ():
        if rank.rdma and rank.transport == "sockets":
            yield Found("NCCL's own words in the log of the collective probe", rank.rank, rank.node)


RULE = Rule(
    id="TRANSPORT_SOCKETS",
    title="NCCL went over sockets although it was given RDMA ports",
    cause="the rank cannot open the device (/dev/infiniband, memlock), or a port went down since the plan was made",
    remedy="look for `NET/IB` and `ibv_` in the rank's log; `--force TRANSPORT_SOCKETS` bears it, many times slower",
    match=_match,
    kind="end",
)
