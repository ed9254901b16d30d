from collections.abc import Iterator

from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.rule import Found, Rule
from sparkd.records.defaults import DEFAULTS, GIB


def _match(evidence: Evidence) -> Iterator[Found]:
    """The test would take the memory of whatever else is there: on a Spark that is one pool."""
    wanted = evidence.sum_bytes * DEFAULTS.collective_free_share
    for member in evidence.members if evidence.sum_bytes else ():
        machine = member.machine
        if machine is None or machine.memory is None or machine.memory.available >= wanted:
            continue
        desktop = f"; a desktop ({machine.desktop}) is open there" if machine.desktop else ""
        yield Found(
            f"{machine.memory.available / GIB:.1f} GiB are available on {member.name}, a sum of "
            f"{evidence.sum_bytes / GIB:.2g} GiB wants {wanted / GIB:.2g} GiB{desktop}",
            node=member.name,
            remedy=_DESKTOP if machine.desktop else "",
        )


_DESKTOP = (
    "log out of the desktop there or `sudo systemctl isolate multi-user.target`; ask for less with --size "
    "(256M is enough to fill a link)"
)

RULE = Rule(
    id="DESKTOP_OOM_FREEZE",
    title="not enough memory for a test of this size",
    cause="a test of the fabric takes twice its size and more of the memory that desktop, agent and system share: one of 16 GiB froze nodes",
    remedy="ask for less with --size (256M is enough to fill a link), or end what takes the memory",
    match=_match,
    kind="state",
    reference="NVIDIA/dgx-spark-playbooks#102, PR #103",
)
