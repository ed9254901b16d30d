from collections.abc import Iterator

from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.rule import Found, Rule, log, reported

_LINE = log("EADDRINUSE", "ddress already in use")
_REPORTED = reported("PORT_IN_USE")


def _match(evidence: Evidence) -> Iterator[Found]:
    yield from _REPORTED(evidence)
    yield from _LINE(evidence)


RULE = Rule(
    id="PORT_IN_USE",
    title="another program has the port",
    cause="it took the port between the look and the use, or an old rank still lives",
    remedy="nothing for a rendezvous port: the next generation meets at another one; if it names the API port, "
    "stop that program",
    match=_match,
    needles=_LINE.needles,
    reference="vllm-project/vllm#39015, #15987",
)
