"""Collective probes that people ask for, beside those before launches. Pure.

`sparkd fabric test` begins and ends them; what a node with a rank cannot bear is not asked of it.
"""

from collections.abc import Sequence
from dataclasses import replace

from sparkd.clock import Instant
from sparkd.fleet.documents import publish
from sparkd.fleet.state import Fleet
from sparkd.gang import collective
from sparkd.gang.collective import PROBE_NAME, CollectiveAsk
from sparkd.gang.machine import ENDED
from sparkd.records.collective import CollectiveTest
from sparkd.records.defaults import Defaults


def next_number(fleet: Fleet) -> int:
    """Greater than that of every probe that a node has heard of: an older one is refused there."""
    heard = (node.generations.get(PROBE_NAME, 0) for node in fleet.nodes.values())
    return 1 + max(fleet.probes, *heard, 0)


def busy(fleet: Fleet, node_id: str) -> str | None:
    """Why this node can take no probe now."""
    node = fleet.nodes[node_id]
    if not node.in_contact:
        return "its agent is not in contact"
    for name, gang in sorted(fleet.gangs.items()):
        if node_id in gang.record.nodes and gang.record.phase not in ENDED and gang.record.phase != "pending":
            return f"{name} is {gang.record.phase} there"
    stuck = collective.stuck_on(node)
    if stuck is not None:
        return f"runs {collective.stuck_words(stuck)}"
    probes = {report.name for report in node.existing(PROBE_NAME)}
    ranks = [report.name for report in node.existing() if report.name not in probes]
    if ranks:
        return f"{ranks[0]} runs there"
    if any(node_id in one.nodes for one in fleet.collectives.values()):
        return "another test runs there"
    return None


def begin(
    fleet: Fleet,
    ask: CollectiveAsk,
    nodes: Sequence[str],
    *,
    port: int,
    most_bytes: int,
    now: Instant,
    limits: Defaults,
) -> tuple[Fleet, int]:
    """Its number. It is in the documents from now on."""
    number = next_number(fleet)
    begun = collective.begin(
        ask,
        nodes,
        number,
        port,
        now.mono,
        within_s=limits.collective_long_s,
        most_bytes=most_bytes,
        limits=limits,
    )
    fleet = replace(fleet, probes=number, collectives={**fleet.collectives, number: begun})
    return publish(fleet), number


def look(fleet: Fleet, number: int, now: Instant, limits: Defaults) -> tuple[Fleet, CollectiveTest]:
    """How it stands. It goes on until `end`."""
    seen = collective.observe(fleet.collectives[number], fleet.nodes, now.mono)
    fleet = replace(fleet, collectives={**fleet.collectives, number: seen})
    return fleet, collective.look(seen, fleet.nodes, now.mono, limits)


def end(fleet: Fleet, number: int) -> Fleet:
    """Have its ranks killed, if any of them still lives. Idempotent."""
    if number not in fleet.collectives:
        return fleet
    rest = {key: value for key, value in fleet.collectives.items() if key != number}
    return publish(replace(fleet, collectives=rest))


def expire(fleet: Fleet, now: Instant, limits: Defaults) -> Fleet:
    """Whoever asked has gone without a word."""
    for number, one in fleet.collectives.items():
        if now.mono - one.began > 2 * limits.collective_s:
            fleet = end(fleet, number)
    return fleet
