"""The desired state of every node, derived from the gangs. Pure."""

from dataclasses import replace

from sparkd.fleet.state import Fleet
from sparkd.gang.collective import wanted_of
from sparkd.gang.machine import wanted
from sparkd.gang.state import Gang
from sparkd.records.document import DeploymentSerial, Document, Revision, Task
from sparkd.records.rank import RankSpec


def publication(gang: Gang) -> tuple[object, ...]:
    """What of a gang appears in documents: while it is equal, no document changes."""
    open_tasks = tuple((t.node, t.task.id) for t in gang.tasks if t.result is None)
    ranks = tuple((node, spec.name) for node, spec in wanted(gang).items())
    return ranks, open_tasks, gang.record.deployment_serial


def publish(fleet: Fleet) -> Fleet:
    """Give every greeted node whose content changed a document of a higher revision."""
    documents = dict(fleet.documents)
    nodes = dict(fleet.nodes)
    ranks, tasks = _ranks(fleet), _tasks(fleet)
    serials = _serials(fleet)
    for node in fleet.nodes.values():
        if not node.greeted:
            continue
        old = documents.get(node.id)
        fresh = Document(
            term=fleet.term,
            holder=fleet.holder,
            instance=fleet.instance,
            revision=old.revision if old else 0,
            hold=True if fleet.holding else tuple(sorted(fleet.held)),
            ranks=tuple(ranks.get(node.id, ())),
            tasks=tuple(tasks.get(node.id, ())),
            follow=fleet.follows.get(node.id, ()),
            deployments=serials,
        )
        if fresh == old:
            continue
        fresh = replace(fresh, revision=fresh.revision + 1)
        documents[node.id] = fresh
        nodes[node.id] = replace(node, published=Revision(fresh.term, fresh.revision))
    return replace(fleet, documents=documents, nodes=nodes)


def _serials(fleet: Fleet) -> tuple[DeploymentSerial, ...]:
    """Of all deployments, the stopped ones too: they are the tombstones that no lost database may raise."""
    return tuple(
        gang.record.deployment_serial for _, gang in sorted(fleet.gangs.items()) if gang.record.serial > 0
    )


def _ranks(fleet: Fleet) -> dict[str, list[RankSpec]]:
    ranks: dict[str, list[RankSpec]] = {}
    if not fleet.holding:
        for name, gang in sorted(fleet.gangs.items()):
            for node, spec in wanted(gang).items() if name not in fleet.held else ():
                ranks.setdefault(node, []).append(spec)
        for collective in fleet.collectives.values():
            for node, spec in wanted_of(collective).items():
                ranks.setdefault(node, []).append(spec)
    return ranks


def _tasks(fleet: Fleet) -> dict[str, list[Task]]:
    tasks: dict[str, list[Task]] = {}
    for gang in fleet.gangs.values():
        for pending in gang.tasks:
            if pending.result is None:
                tasks.setdefault(pending.node, []).append(pending.task)
    for pending in fleet.errands:
        tasks.setdefault(pending.node, []).append(pending.task)
    return tasks
