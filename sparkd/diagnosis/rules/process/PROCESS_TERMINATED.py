from sparkd.diagnosis.ended import ended_by
from sparkd.diagnosis.rule import Rule

RULE = Rule(
    id="PROCESS_TERMINATED",
    title="a process of the rank was asked to end",
    cause="a signal that asks for it (SIGTERM, SIGINT, SIGHUP) came from outside: a person, a service manager, a session that closed",
    remedy="start the ranks with sparkd, which outlives sessions; else see who stopped it",
    match=ended_by(15, 2, 1),
    kind="exit",
)
