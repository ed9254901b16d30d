from collections.abc import Iterator

from sparkd.diagnosis.ended import NEEDLES, asked_to_end, ended_by
from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.lines import ASKED_TO_END
from sparkd.diagnosis.rule import Found, Rule, on_line

_of_a_signal = ended_by(15, 2, 1)


def _match(evidence: Evidence) -> Iterator[Found]:
    yield from _of_a_signal(evidence)
    for line in asked_to_end(evidence):
        yield on_line(line, title="the engine was asked to end")


RULE = Rule(
    id="PROCESS_TERMINATED",
    title="a process of the rank was asked to end",
    cause="a signal that asks for it (SIGTERM, SIGINT, SIGHUP) came from outside: a person, a service manager, a session that closed",
    remedy="start the ranks with sparkd, which outlives sessions; else see who stopped it",
    match=_match,
    kind="exit",
    needles=(*NEEDLES, ASKED_TO_END),
)
