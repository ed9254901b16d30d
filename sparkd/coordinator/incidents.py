"""Incidents: what is written up of a fall, and one JSON file of each."""

import logging
from pathlib import Path

import msgspec

from sparkd.clock import Instant
from sparkd.coordinator.blackbox import BlackBox
from sparkd.coordinator.events import EventLog
from sparkd.diagnosis.explanation import explain, of_fall
from sparkd.diagnosis.timeline import timeline
from sparkd.fleet.state import Fleet
from sparkd.gang.record import GangRecord
from sparkd.gang.state import WriteIncident
from sparkd.records.defaults import DEFAULTS
from sparkd.records.incident import Entry, Incident

log = logging.getLogger("sparkd.coordinator")


def write_up(
    incident: WriteIncident,
    record: GangRecord,
    fleet: Fleet,
    *,
    box: BlackBox,
    events: EventLog,
    now: Instant,
) -> Incident:
    """The fall with all that is kept of the gang's nodes around it."""
    fall = incident.fall
    nodes = [fleet.nodes[node] for node in record.nodes if node in fleet.nodes]
    ranks = {spec.name: spec.rank for spec in record.specs}
    evidence = box.evidence(nodes, ranks, fall.wall - DEFAULTS.timeline_s)
    said = [
        Entry(one.at, "event", f"{one.kind}: {one.reason}", one.node, one.rank)
        for one in events.recent(DEFAULTS.timeline_entries, record.name)
    ]
    acts = box.acts(nodes, fall.wall - DEFAULTS.timeline_s)
    return Incident(
        at=now.wall,
        generation=fall.generation,
        fall=fall,
        verdicts=incident.verdicts,
        explanation=of_fall(explain(evidence), fall, incident.verdicts),
        timeline=timeline(evidence, (*said, *acts), until=max(now.wall, fall.wall)),
    )


class IncidentFiles:
    """`FOLDER/NAME-gGENERATION.json`, the newest of them. A full disk keeps nothing from being decided."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, deployment: str, generation: int, incident: Incident) -> None:
        path = self._folder / f"{deployment}-g{generation}.json"
        body = msgspec.json.format(msgspec.json.encode({"deployment": deployment, "incident": incident}))
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            part = path.with_suffix(".part")
            part.write_bytes(body)
            part.replace(path)
            files = sorted(self._folder.glob("*.json"), key=lambda file: file.stat().st_mtime)
            for old in files[: -DEFAULTS.incident_files]:
                old.unlink()
        except OSError as error:
            log.warning("%s cannot be written: %s", path, error)
