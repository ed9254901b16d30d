"""The status document, drawn from the fleet. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from sparkd.clock import Instant
from sparkd.detect.node import clock
from sparkd.diagnosis.catalogue import catalogue
from sparkd.fleet.nodes import Node
from sparkd.fleet.state import Fleet
from sparkd.gang.machine import RUNNING
from sparkd.gang.record import GangRecord
from sparkd.gang.state import Fault, Gang, Waiting
from sparkd.records.fall import Fall
from sparkd.records.rank import RankSpec
from sparkd.records.report import RankReport, Sample
from sparkd.records.status import (
    DeploymentStatus,
    Endpoint,
    ExitStatus,
    FallStatus,
    NodeStatus,
    Progress,
    RankStatus,
    Status,
    WaitingFor,
)
from sparkd.records.verdict import Severity, Verdict


def status(
    fleet: Fleet,
    now: Instant,
    key_files: Mapping[str, str],
    certificates: Mapping[str, Verdict] | None = None,
) -> Status:
    """`certificates`: what is wrong with those of nodes, by node id."""
    return Status(
        deployments=tuple(
            deployment_status(fleet, gang, now, key_files) for _, gang in sorted(fleet.gangs.items())
        ),
        nodes=node_statuses(fleet, certificates),
    )


def node_statuses(fleet: Fleet, certificates: Mapping[str, Verdict] | None = None) -> tuple[NodeStatus, ...]:
    nodes = sorted(fleet.nodes.values(), key=lambda node: node.name)
    return tuple(_node(node, (certificates or {}).get(node.id)) for node in nodes)


def deployment_status(
    fleet: Fleet, gang: Gang, now: Instant, key_files: Mapping[str, str]
) -> DeploymentStatus:
    record = gang.record
    head = record.specs[0] if record.specs else None
    running = record.phase in RUNNING
    shed = running and _shed(fleet, gang)
    told = DeploymentStatus(
        name=record.name,
        profile=record.intent.profile_name,
        intent=record.intent.digest(),
        desired=record.desired,
        phase=record.phase,
        reason=record.reason,
        generation=record.generation,
        falls=record.falls,
        since=rfc3339(record.since_wall),
        conditions=(*gang.conditions, "shed") if shed else gang.conditions,
        waiting_for=_waiting(fleet, gang, now),
        endpoint=_endpoint(record, key_files.get(record.name)),
        admit=not shed,
        proof_age_s=_proof_age(fleet, gang, now) if running else None,
        proof_bound_s=_proof_bound(head) if running else None,
        ranks=tuple(_rank(fleet, gang, rank) for rank in range(len(record.specs))),
        verdicts=record.verdicts,
        left_on=record.left_on,
        last_fall=_last_fall(record.fall) if record.fall is not None else None,
    )
    if gang.fault is not None:
        return _undecided(told, gang.fault)
    if _head_report(fleet, gang) is None and gang.endpoint_proof is None:
        # A new life of the coordinator has the last one's word only.
        return _doubted(told, "the coordinator has just started", "rank 0's node to say how it is")
    return told


def _undecided(status: DeploymentStatus, fault: Fault) -> DeploymentStatus:
    """A deployment of which a rule has a fault: nobody looks whether it still serves."""
    rule = catalogue()["DECISION_FAILED"]
    verdict = Verdict(rule.id, Severity.BLOCK, rule.title, fault.reason, rule.cause, rule.remedy)
    waiting = WaitingFor("a decision about it to be made again", status.since, "it goes on from there")
    why = f"no decision about it can be made: {fault.reason}"
    ended = status.phase in ("stopped", "failed")
    told = _doubted(status, why, waiting.what)
    return replace(
        told,
        reason=told.reason if told is not status else f"{status.reason}; {why}",
        verdicts=(verdict, *status.verdicts),
        waiting_for=told.waiting_for if ended else waiting,
    )


def unwritten(status: DeploymentStatus, why: str) -> DeploymentStatus:
    """A deployment while the database cannot be written: a fall could not be recorded."""
    reason = f"the coordinator cannot write its database: {why}"
    return _doubted(status, reason, "the coordinator's database to be written again")


def _doubted(status: DeploymentStatus, why: str, what: str) -> DeploymentStatus:
    """It may serve, but nobody here can say so: that is not `ready`."""
    if status.phase != "ready":
        return status
    waiting = WaitingFor(what=what, since=status.since, then="it is ready as soon as that shows it")
    return replace(status, phase="recovering", reason=f"it may serve; {why}", waiting_for=waiting)


def _last_fall(fall: Fall) -> FallStatus:
    return FallStatus(
        generation=fall.generation,
        rank=fall.rank,
        node=fall.node,
        reason=fall.reason,
        at=rfc3339(fall.wall),
        exit=ExitStatus(fall.code, fall.signal, fall.how),
        lines=fall.lines,
        cause=fall.cause,
        remedy=fall.remedy,
    )


def rfc3339(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _endpoint(record: GangRecord, key_file: str | None) -> Endpoint | None:
    head = record.specs[0] if record.specs else None
    if head is None or head.probe is None or record.phase in ("stopped", "failed"):
        return None
    return Endpoint(f"http://{head.probe.api}/v1", head.probe.models or (head.probe.model,), key_file)


def _head_report(fleet: Fleet, gang: Gang) -> tuple[Node, RankReport] | None:
    record = gang.record
    if not record.specs:
        return None
    node = fleet.nodes.get(record.nodes[0])
    report = node.reports.get(record.specs[0].name) if node else None
    return (node, report) if node is not None and report is not None else None


def _proof_age(fleet: Fleet, gang: Gang, now: Instant) -> float | None:
    """Age of the last token that needed every rank: as reported, plus the time since that report."""
    ages = [now.mono - gang.endpoint_proof] if gang.endpoint_proof is not None else []
    found = _head_report(fleet, gang)
    if found is not None:
        node, report = found
        if report.probe is not None and report.probe.proof_age_s is not None and node.heard is not None:
            ages.append(report.probe.proof_age_s + now.mono - node.heard)
    return round(min(ages), 3) if ages else None


def _shed(fleet: Fleet, gang: Gang) -> bool:
    """A node of it is short of memory. Nothing enforces that: clients ask the endpoint itself."""
    nodes = [fleet.nodes.get(node_id) for node_id in gang.record.nodes]
    return any(node.sample.shed is not None for node in nodes if node is not None and node.sample is not None)


def _proof_bound(head: RankSpec | None) -> float | None:
    if head is None or head.probe is None:
        return None
    return head.probe.pulse_silence_s + head.probe.pulse_timeout_s


def _waiting(fleet: Fleet, gang: Gang, now: Instant) -> WaitingFor | None:
    waiting = gang.waiting
    if waiting is None or gang.record.phase in ("ready", "stopped", "failed"):
        return None

    def moment(mono: float) -> str:
        return rfc3339(now.wall + mono - now.mono)

    return WaitingFor(
        what=waiting.what,
        since=moment(waiting.since),
        then=waiting.then,
        rank=waiting.rank,
        node=_name(fleet, waiting),
        last_progress=moment(gang.progress_at) if gang.record.phase in RUNNING else None,
        deadline=moment(waiting.deadline) if waiting.deadline is not None else None,
    )


def _name(fleet: Fleet, waiting: Waiting) -> str | None:
    if waiting.node is None:
        return None
    node = fleet.nodes.get(waiting.node)
    return node.name if node else waiting.node


def _rank(fleet: Fleet, gang: Gang, rank: int) -> RankStatus:
    record = gang.record
    node_id, spec = record.nodes[rank], record.specs[rank]
    node = fleet.nodes.get(node_id)
    report = node.reports.get(spec.name) if node else None
    exit_ = report.exit if report else None
    return RankStatus(
        rank=rank,
        node=node.name if node else node_id,
        node_address=node.facts.address if node and node.facts else "",
        phase=_rank_phase(report, ready=record.phase == "ready"),
        since=rfc3339(report.since) if report else None,
        pid=report.pid if report else None,
        progress=Progress(
            report.percent if report else None,
            report.detail if report else "",
            report.read_bytes if report else 0,
            report.rss_bytes if report else 0,
        ),
        exit=ExitStatus(exit_.code, exit_.signal, exit_.how) if exit_ else None,
    )


def _rank_phase(report: RankReport | None, *, ready: bool) -> str:
    if report is None:
        return "absent"
    if report.state not in ("starting", "running"):
        return report.state
    # A follower prints no line when it serves; the gang's proof says it for all its ranks.
    return "serving" if ready else report.phase


def _node(node: Node, certificate: Verdict | None) -> NodeStatus:
    facts = node.facts
    addresses = tuple(dict.fromkeys((facts.address, facts.fabric_address))) if facts else ()
    sample = node.sample if node.sample is not None and node.in_contact else Sample()
    return NodeStatus(
        id=node.id,
        name=node.name,
        state=node.state,
        addresses=addresses,
        memory=sample.memory,
        pressure=sample.pressure,
        gpu=sample.gpu,
        drained=node.drained,
        runtimes=facts.runtimes if facts else (),
        privileges=facts.privileges if facts else (),
        limits=facts.limits if facts else (),
        verdicts=(
            *([certificate] if certificate else ()),
            *(clock(-node.clock_offset_s, node.clock_error_s, node.name) if node.in_contact else ()),
            *(replace(verdict, node=node.name) for verdict in sample.verdicts),
        ),
    )
