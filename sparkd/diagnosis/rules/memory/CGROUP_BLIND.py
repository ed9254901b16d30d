from collections.abc import Iterator

from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.rule import Found, Rule, log
from sparkd.records.defaults import GIB
from sparkd.records.verdict import Severity

_LINE = log(
    "docker run ",
    "docker create ",
    "podman run ",
    "MemoryMax=",
    "MemoryHigh=",
    "MemoryLimit=",
    pattern=r"\b(docker|podman) (run|create)\b.*\s(--memory|-m)[ =]\d|\bMemory(Max|High|Limit)=\d",
)


def _match(evidence: Evidence) -> Iterator[Found]:
    yield from _LINE(evidence)
    for member in evidence.members:
        machine = member.machine
        for limit in machine.memory_limits if machine is not None and not member.local else ():
            used = f", and counts {limit.used / GIB:.1f} GiB" if limit.used is not None else ""
            yield Found(f"{limit.group} may hold {limit.most / GIB:.1f} GiB{used}", node=member.name)


RULE = Rule(
    id="CGROUP_BLIND",
    title="a limit on a control group's memory does not see what the GPU takes",
    cause="the driver's allocations in unified memory are charged to no group: the limit ends nothing when it should, "
    "and may end a rank for its page cache",
    remedy="take the limit away (`systemctl revert`, or no --memory for docker); sparkd watches MemAvailable itself",
    match=_match,
    kind="state",
    severity=Severity.WARN,
    needles=_LINE.needles,
    reference="Blackwellboy/model-serving-minefield#57; graphistry/pygraphistry#1671",
)
