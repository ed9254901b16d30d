from collections.abc import Iterator

from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.rule import Found, Rule, kernel, reported

_LINE = kernel(
    "Killed process",
    "oom-killer",
    "oom_reaper",
    pattern=r"[Oo]ut of memory: Killed process \d+|oom_reaper: reaped process|invoked oom-killer",
)
_REPORTED = reported("KERNEL_OOM")


def _match(evidence: Evidence) -> Iterator[Found]:
    yield from _REPORTED(evidence)
    yield from _LINE(evidence)


RULE = Rule(
    id="KERNEL_OOM",
    title="the kernel's OOM killer has struck",
    cause="memory had run out before anybody ended a rank",
    remedy="raise memory.floors_gib of the profile, or lower what it uses",
    match=_match,
    kind="end",
    retry="memory",
    needles=_LINE.needles,
    prevents=("memory.floors_gib.serving=6",),
)
