"""A coordinator whose database is old, or gone: what the agents' hellos tell it again (design §11, "Start").

The database is *old* if it is empty, or if a hello names a (term, instance), a serial or a generation that
it does not hold. Then every deployment that a hello names stays held until each node of its
highest-generation descriptor has said hello in this life; then that descriptor, generation and serial are
taken. Until then nobody can know whether a newer generation runs on a node that is still silent.

What was stopped is remembered by every agent as (name, serial, desired): the highest serial wins over any
database, so nothing stopped comes back.
"""

from dataclasses import replace

from sparkd.clock import Instant
from sparkd.fleet.nodes import Node
from sparkd.fleet.state import Fleet
from sparkd.gang.record import GangRecord
from sparkd.gang.state import Gang, Waiting
from sparkd.records.document import DeploymentSerial
from sparkd.records.intent import Descriptor
from sparkd.records.names import is_deployment_name
from sparkd.records.rank import RankSpec
from sparkd.records.report import Hello


def learn(fleet: Fleet, hello: Hello, now: Instant) -> Fleet:
    """Note whether a hello shows that the database is old, and hold what it names if so."""
    fleet = _compare(fleet, hello, now)
    if not fleet.old and _knows_more(fleet, hello):
        fleet = replace(fleet, old=True)
    if not fleet.old:
        return fleet
    named = {serial.name for serial in hello.deployments}
    named |= {row.spec.deployment for row in hello.ledger if is_deployment_name(row.spec.deployment)}
    fresh = named - fleet.known_again
    return review(replace(fleet, held=fleet.held | fresh), now)


def highest_serial(fleet: Fleet, name: str) -> int:
    """A new deployment of that name must begin above it."""
    serial = _serial(fleet, name)
    return serial.serial if serial is not None else 0


def _compare(fleet: Fleet, hello: Hello, now: Instant) -> Fleet:
    """A node that comes later remembers another wish for a deployment that was taken from others already.

    What a person asked for in this life is newer than what a node remembers from before it was away, and gets
    a serial above it. Where nobody asked since, the highest serial wins.
    """
    for serial in hello.deployments:
        gang = fleet.gangs.get(serial.name)
        if gang is None or serial.name not in fleet.known_again or serial.serial < gang.record.serial:
            continue
        record = gang.record
        if (serial.serial, serial.desired) == (record.serial, record.desired):
            continue
        if serial.desired == record.desired:
            fleet = _amend(fleet, gang, replace(record, serial=serial.serial))
        elif serial.name in fleet.asked or serial.serial == record.serial:
            fleet = _amend(fleet, gang, replace(record, serial=serial.serial + 1))
        else:
            wished = replace(record, serial=serial.serial, desired=serial.desired)
            fleet = _put(fleet, _settle_phase(wished, now), now)
    return fleet


def _amend(fleet: Fleet, gang: Gang, record: GangRecord) -> Fleet:
    return replace(fleet, gangs={**fleet.gangs, record.name: replace(gang, record=record)})


def _knows_more(fleet: Fleet, hello: Hello) -> bool:
    """Whether a hello shows something that was committed after this database was copied.

    Nothing is published before it is committed, so an agent can never be ahead of a database that is whole.
    A copy that was made within a life is only found by what it lacks: a serial or a generation.
    """
    if hello.highest_term > 0 and (hello.highest_term, hello.highest_instance) not in fleet.lives:
        return True
    records = {name: gang.record for name, gang in fleet.gangs.items()}
    for serial in hello.deployments:
        if serial.name not in records or serial.serial > records[serial.name].serial:
            return True
    for name, generation in hello.generations.items():
        if not is_deployment_name(name):
            continue  # a collective probe's: it leaves nothing that could be forgotten
        if name not in records or generation > records[name].generation:
            return True
    return False


def review(fleet: Fleet, now: Instant) -> Fleet:
    """Take every held deployment whose nodes have all spoken; show the others as waiting for a node."""
    for name in sorted(fleet.held):
        found = _best(fleet, name)
        # While nobody who spoke was a member, any node that has not spoken may be one.
        members = found.nodes if found is not None else sorted(fleet.enrolled)
        # A node that was removed will never speak again.
        awaited = fleet.enrolled or frozenset(members)
        missing = [node for node in members if node in awaited and not _spoken(fleet, node)]
        if missing or fleet.holding:
            fleet = _show_waiting(fleet, name, found, missing, now)
            continue
        fleet = _take(replace(fleet, held=fleet.held - {name}), name, found, now)
        if name in fleet.gangs:
            fleet = replace(fleet, known_again=fleet.known_again | {name})
    return fleet


def take_down(fleet: Fleet, name: str, now: Instant) -> Fleet:
    """`down` needs no knowledge: it ends the hold with what is known by now."""
    fleet = replace(fleet, held=fleet.held - {name}, known_again=fleet.known_again | {name})
    found = _best(fleet, name)
    return _take(fleet, name, found, now) if found is not None else fleet


def _spoken(fleet: Fleet, node_id: str) -> bool:
    node = fleet.nodes.get(node_id)
    return node is not None and node.greeted


def _greeted(fleet: Fleet) -> list[Node]:
    return [node for node in fleet.nodes.values() if node.greeted]


def _best(fleet: Fleet, name: str) -> Descriptor | None:
    """The descriptor of the highest generation that any ledger holds."""
    found = [
        row.spec.descriptor
        for node in _greeted(fleet)
        for row in node.ledger
        if row.spec.deployment == name and row.spec.descriptor.intent.profile
    ]
    return max(found, key=lambda d: (d.generation, d.serial), default=None)


def _serial(fleet: Fleet, name: str) -> DeploymentSerial | None:
    """The newest wish that nodes have told of in this life, also one that has to say hello anew since."""
    found = [s for node in fleet.nodes.values() for s in node.deployments if s.name == name]
    return max(found, key=lambda s: s.serial, default=None)


def _specs(fleet: Fleet, descriptor: Descriptor) -> dict[int, RankSpec]:
    return {
        row.spec.rank: row.spec
        for node in _greeted(fleet)
        for row in node.ledger
        if (row.spec.deployment, row.spec.generation) == (descriptor.name, descriptor.generation)
    }


def _runs(fleet: Fleet, name: str) -> bool:
    return any(node.existing(name) for node in _greeted(fleet))


def _take(fleet: Fleet, name: str, descriptor: Descriptor | None, now: Instant) -> Fleet:
    known = fleet.gangs.get(name)
    record = known.record if known is not None and not _is_shown_only(known) else None
    serial = _serial(fleet, name)
    if descriptor is None:
        return _without_descriptor(fleet, name, record, serial, now)
    known_enough = record is not None and record.generation >= descriptor.generation
    rebuilt = record if known_enough else _rebuild(fleet, descriptor, record, now)
    if rebuilt is None:
        return _drop_shown(fleet, name)
    own = record.deployment_serial if record is not None else None
    wishes = [wish for wish in (own, serial) if wish is not None]
    if wishes:
        # The highest serial wins over any descriptor; of two equal ones, what a person told us.
        wish = max(wishes, key=lambda w: w.serial)
        rebuilt = replace(rebuilt, serial=max(rebuilt.serial, wish.serial), desired=wish.desired)
    elif not _runs(fleet, name):
        # Nobody remembers what was wished, and nothing runs: it is not for us to start it.
        rebuilt = replace(rebuilt, desired="down")
    return _put(fleet, _settle_phase(rebuilt, now), now)


def _without_descriptor(
    fleet: Fleet, name: str, record: GangRecord | None, serial: DeploymentSerial | None, now: Instant
) -> Fleet:
    """Only a serial is remembered: it corrects a record, but cannot make one."""
    if record is None:
        return _drop_shown(fleet, name)
    if serial is not None and serial.serial > record.serial:
        record = _settle_phase(replace(record, serial=serial.serial, desired=serial.desired), now)
    return _put(fleet, record, now)


def _rebuild(
    fleet: Fleet, descriptor: Descriptor, record: GangRecord | None, now: Instant
) -> GangRecord | None:
    specs = _specs(fleet, descriptor)
    if not specs:
        return record
    anyone = next(iter(specs.values()))
    names = [f"sparkd-{descriptor.name}-g{descriptor.generation}-r{r}" for r in range(len(descriptor.nodes))]
    complete = tuple(
        # A rank whose own ledger is lost: its name is enough, for it runs already or never will.
        specs.get(rank) or replace(anyone, name=name, rank=rank, probe=None)
        for rank, name in enumerate(names)
    )
    base = record or GangRecord(descriptor.name, descriptor.intent)
    return replace(
        base,
        intent=descriptor.intent,
        serial=max(base.serial, descriptor.serial),
        desired="up",
        nodes=descriptor.nodes,
        generation=descriptor.generation,
        specs=complete,
        api_port=descriptor.api_port,
        rendezvous_ports=descriptor.rendezvous_ports,
        phase="launching",
        reason="rebuilt from what the agents remember",
        since_wall=now.wall,
        verdicts=(),
        left_on=(),
    )


def _settle_phase(record: GangRecord, now: Instant) -> GangRecord:
    """A phase that agrees with what is desired; the gang machine goes on from there."""
    ended = record.phase in ("stopped", "failed")
    if record.desired == "down" and record.phase != "stopped":
        return replace(
            record, phase="stopping", ending="stopped", reason="asked to stop", since_wall=now.wall
        )
    if record.desired == "up" and ended and record.phase == "stopped":
        return replace(record, phase="pending", reason="asked for", since_wall=now.wall)
    return record


def _put(fleet: Fleet, record: GangRecord, now: Instant) -> Fleet:
    gang = Gang(
        record,
        phase_since=now.mono,
        progress_at=now.mono,
        stop_since=now.mono,
        restored_at=now.mono,
        head_gone=True,
    )
    return replace(fleet, gangs={**fleet.gangs, record.name: gang})


_SHOWN = "its coordinator forgot it"


def _is_shown_only(gang: Gang) -> bool:
    """A place holder for the status: made from a name alone, never stored."""
    return gang.record.serial == 0


def _drop_shown(fleet: Fleet, name: str) -> Fleet:
    gang = fleet.gangs.get(name)
    if gang is None or not _is_shown_only(gang):
        return fleet
    return replace(fleet, gangs={k: v for k, v in fleet.gangs.items() if k != name})


def _show_waiting(
    fleet: Fleet, name: str, descriptor: Descriptor | None, missing: list[str], now: Instant
) -> Fleet:
    gang = fleet.gangs.get(name)
    if gang is None:
        if descriptor is None:
            return fleet
        shown = GangRecord(name, descriptor.intent, serial=0, reason=_SHOWN, since_wall=now.wall)
        gang = Gang(shown, phase_since=now.mono)
    node = missing[0] if missing else None
    name_of_node = fleet.nodes[node].name if node in fleet.nodes else node
    what = f"node {name_of_node} to say hello: the coordinator's database is older than what runs"
    waiting = Waiting(what, gang.phase_since, "it is taken over as it is", node=node)
    if gang.waiting == waiting:
        return fleet
    return replace(fleet, gangs={**fleet.gangs, name: replace(gang, waiting=waiting)})
