"""One explanation out of all findings: the cause, what followed from it, and what is not known."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sparkd.diagnosis.catalogue import KINDS, Judged, catalogue, judge
from sparkd.diagnosis.choice import COLLECTIVE, DEATH, ERROR, Moment, choose
from sparkd.diagnosis.ended import ends_of, may_precede
from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.lines import ASKED_TO_END
from sparkd.diagnosis.rule import Found, Kind
from sparkd.engine.phrases import telling_lines
from sparkd.records.defaults import DEFAULTS
from sparkd.records.explanation import Cause, Explanation, Secondary
from sparkd.records.fall import Fall
from sparkd.records.verdict import Severity, Verdict

FAILED: Final = (
    "Engine core initialization failed",
    "WorkerProc failed to start",
    "WorkerProc initialization failed",
    "encountered a fatal error",
)
"""What vLLM says when it gives up, whatever the reason."""
UNKNOWN: Final = "UNKNOWN"

_BARE: Final = (None, "PROCESS_KILLED")
"""Causes that say no more than that something ended."""
_MOMENTS: Final[dict[Kind, int]] = {
    "end": DEATH,
    "exit": DEATH,
    "error": ERROR,
    "collective": COLLECTIVE,
}


def explain(evidence: Evidence, fall: Fall | None = None) -> Explanation:
    """Kind first, time second (design §8). Without any sign of a fall there is no cause.

    Of a `fall` that was seen, only what lies near it can be the cause.
    """
    near = evidence if fall is None or fall.judged else _near(evidence, fall)
    rules = catalogue().values()
    judged = judge(near, [rule for rule in rules if rule.kind != "state"])
    events = [one for one in judged if _is_event(one)]
    states = judge(evidence, [rule for rule in rules if rule.kind == "state"])
    states += tuple(one for one in judged if not _is_event(one))
    if near.logs_alone:
        events = _without_echoes(events, _unknown(near))
    if not events:
        events = _unknown(near)
    first, *beside = choose(events, _moment) or (None,)
    if first is None:
        return Explanation(verdicts=tuple(one.verdict for one in states))
    told = _explained(first, events)
    hidden = (told, first, *beside)
    rest = [one for one in events if not any(one is other for other in hidden)]
    unknown = told.rule.id == UNKNOWN
    return Explanation(
        cause=Cause(told.rule.id, told.found.rank, told.found.node, told.found.evidence),
        secondary=tuple(
            Secondary(one.rule.id, one.found.rank, one.found.node, one.found.evidence, one.count)
            for one in sorted(rest, key=lambda one: _moment(one).at or 0.0)
        ),
        verdicts=tuple(one.verdict for one in (told, *beside, *states)),
        lines=telling_lines([line.text for line in evidence.lines]) if unknown else (),
        not_known=tuple(_not_known(told, beside)),
        prevents=told.rule.prevents,
    )


def _is_event(one: Judged) -> bool:
    """A warning ends nothing, whatever it may lead to."""
    return one.verdict.severity is Severity.BLOCK


def _without_echoes(events: list[Judged], unknown: list[Judged]) -> list[Judged]:
    """Without the word of an engine that is asked to end, where anything may have gone wrong before: then its
    launcher asks because of that.
    """
    asked = [one for one in events if ASKED_TO_END in one.found.evidence]
    others = [one.found for one in (*events, *unknown) if ASKED_TO_END not in one.found.evidence]
    echoes = [one for one in asked if any(may_precede(other, one.found) for other in others)]
    return [one for one in events if one not in echoes]


def _near(evidence: Evidence, fall: Fall) -> Evidence:
    """Without what was over long before the fall, or came long after it."""
    within_s = DEFAULTS.cause_window_s + fall.wall_error_s

    def is_near(at: float | None, error_s: float = 0.0) -> bool:
        return at is None or abs(at - fall.wall) <= within_s + error_s

    return replace(
        evidence,
        lines=tuple(one for one in evidence.lines if is_near(one.at, one.error_s)),
        kernel=tuple(one for one in evidence.kernel if is_near(one.at, one.error_s)),
        ends=tuple(one for one in evidence.ends if is_near(one.at, one.error_s)),
        samples=tuple(one for one in evidence.samples if is_near(one.at)),
    )


def _explained(first: Judged, events: list[Judged]) -> Judged:
    """What the same rank said shortly before its end, or its node's kernel, explains it better than the bare
    end.
    """
    last = _moment(first)
    said = [one for one in events if _is_about(one, first) and _led_to(_moment(one), last)]
    return min(said, key=lambda one: (KINDS.index(one.rule.kind), _moment(one).at or 0.0), default=first)


def _led_to(moment: Moment, last: Moment) -> bool:
    if moment.at is None or last.at is None:
        return True
    return -DEFAULTS.cause_window_s <= moment.at - last.at <= moment.error_s + last.error_s


def _is_about(one: Judged, first: Judged) -> bool:
    if one.found.node != first.found.node:
        return False
    of_its_node = one.rule.kind == "end" and one.found.rank is None and one.found.node is not None
    return of_its_node or one.found.rank == first.found.rank


def _moment(one: Judged) -> Moment:
    return Moment(_MOMENTS[one.rule.kind], one.found.at, one.found.error_s)


def _unknown(evidence: Evidence) -> list[Judged]:
    """Something ended with an error, or gave up, and no rule knows why."""
    founds = [
        Found(f"{end.process} ended with {end.code}", end.rank, end.node, end.at, end.error_s)
        for end in ends_of(evidence)
        if end.code
    ]
    founds += [
        Found(line.text, line.rank, line.node, line.at, line.error_s)
        for line in evidence.lines
        if any(words in line.text for words in FAILED)
    ]
    return [Judged(catalogue()[UNKNOWN], found) for found in founds]


def _gaps(id_: str) -> list[str]:
    rule = catalogue().get(id_)
    if rule is not None and rule.kind == "collective":
        return ["what ended first: so a rank hears of another one's end, whose log or node may say more"]
    if id_ == UNKNOWN:
        return ["why it ended: none of the known causes fits what is left"]
    return ["who sent SIGKILL: nothing that is left says so"] if id_ == "PROCESS_KILLED" else []


def _not_known(told: Judged, beside: list[Judged]) -> list[str]:
    gaps = _gaps(told.rule.id)
    if told.found.at is None:
        gaps.append("when it happened: its log has no times")
    gaps += [
        f"whether {one.rule.id} on rank {one.found.rank} came first: the clocks differ by less than that"
        for one in beside
    ]
    return gaps


def _says_more(id_: str, told: str | None) -> bool:
    """Why something was ended says more than any signal, and whatever is known more than a bare SIGKILL."""
    if told in _BARE:
        return True
    rules = catalogue()
    return told in rules and rules[told].kind == "exit" and id_ in rules and rules[id_].kind == "end"


def with_calls(told: Explanation, found: Sequence[Verdict]) -> Explanation:
    """What nodes found when they called each other after ranks had not come together: it is the cause if it
    would keep ranks apart, and what the ranks said followed from it. What both tell of a node is told
    once, as whoever comes first tells it.
    """
    found = tuple(dict.fromkeys(found))  # a node's calls to several others may fail alike
    cause = next((one for one in found if one.severity is Severity.BLOCK), None)
    if cause is None:
        return replace(told, verdicts=(*told.verdicts, *_not_among(told.verdicts, found)))
    followed = () if told.cause is None else (Secondary(*_parts(told.cause)),)
    said = {(one.id, one.node) for one in found}
    rule = catalogue().get(cause.id)
    return replace(
        told,
        cause=Cause(cause.id, cause.rank, cause.node, cause.evidence or cause.title),
        secondary=tuple(one for one in (*followed, *told.secondary) if (one.id, one.node) not in said),
        verdicts=(*found, *_not_among(found, told.verdicts)),
        lines=(),
        not_known=tuple(_gaps(cause.id)),
        prevents=rule.prevents if rule is not None else (),
    )


def _not_among(known: Sequence[Verdict], others: Sequence[Verdict]) -> list[Verdict]:
    places = {(one.id, one.node) for one in known}
    return [one for one in others if (one.id, one.node) not in places]


def _parts(cause: Cause) -> tuple[str, int | None, str | None, str]:
    return cause.id, cause.rank, cause.node, cause.evidence


def of_fall(seen: Explanation, fall: Fall, verdicts: tuple[Verdict, ...]) -> Explanation:
    """What the evidence says of a fall that the gang has judged already: the gang names the rank, and the
    evidence may say more of its cause, such as a line of its node's kernel.
    """
    cause = Cause(fall.cause or UNKNOWN, fall.rank, fall.node, fall.reason)
    other = seen.cause if seen.cause is not None and seen.cause.id != UNKNOWN else None
    if other is not None and not fall.judged and other.node == fall.node and _says_more(other.id, fall.cause):
        cause, other = replace(other, rank=fall.rank), None
    followed = [] if other is None else [Secondary(other.id, other.rank, other.node, other.evidence)]
    followed += seen.secondary
    known = {verdict.id for verdict in verdicts}
    return Explanation(
        cause,
        tuple(one for one in followed if (one.id, one.rank) != (cause.id, cause.rank)),
        (*verdicts, *(verdict for verdict in seen.verdicts if verdict.id not in known)),
        fall.lines if cause.id == UNKNOWN else (),
        tuple(_gaps(cause.id)),
        rule.prevents if (rule := catalogue().get(cause.id)) is not None else (),
    )
