"""The rules of the agent's core (design §11, agent protocol).

    Listed and absent: start. Existing and not listed: stop. Held: neither.

A name is started at most once, a rank only when no other rank exists on the node, and nothing at all before
this run of the agent has received a document.
"""

from dataclasses import replace

from sparkd.clock import Instant
from sparkd.records.defaults import DEFAULTS
from sparkd.records.document import Document
from sparkd.records.names import parse_rank_name
from sparkd.records.rank import RankSpec
from sparkd.records.report import RankState, Refusal, RefusalCode
from sparkd_agent.core.state import (
    Begin,
    Core,
    CoreCommand,
    CoreEvent,
    DocumentCame,
    EngineFrozen,
    Existing,
    Fence,
    Forget,
    GoneTold,
    HeadTried,
    Kill,
    LeaseGiven,
    MemoryShort,
    RankChanged,
    SaveFences,
    Start,
    StartFailed,
    Terminate,
)

Step = tuple[Core, tuple[CoreCommand, ...]]


def adopt(core: Core, ranks: dict[str, Existing], folders: frozenset[str]) -> Core:
    """What an earlier run of the agent left: ranks to look after, and names that are spent."""
    generations = dict(core.generations)
    for rank in ranks.values():
        name = rank.name
        generations[name.deployment] = max(generations.get(name.deployment, 0), name.generation)
    return replace(core, ranks=ranks, folders=folders, generations=generations)


def step(core: Core, event: CoreEvent, now: Instant) -> Step:
    """Take one event in and make the document true as far as that is now possible."""
    match event:
        case DocumentCame(document):
            return _take(core, document)
        case LeaseGiven(lease_s):
            return replace(core, lease_until=now.mono + lease_s), ()
        case RankChanged(name, state, served):
            return _reconcile(_note_rank(core, name, state, served=served))
        case StartFailed(refusal):
            ranks = {name: rank for name, rank in core.ranks.items() if name != refusal.rank}
            refusals = {**core.refusals, refusal.rank: refusal}
            return _reconcile(replace(core, ranks=ranks, refusals=refusals))
        case GoneTold(names):
            return _reconcile(_note_told(core, names))
        case EngineFrozen(name, reason):
            return _frozen(core, name, reason, now)
        case HeadTried(name, reached):
            return _note_head(core, name, now, reached=reached)
        case MemoryShort(name, reason):
            return _kill(core, name, reason)


# Documents. -----------------------------------------------------------------------------------------


def _take(core: Core, document: Document) -> Step:
    why = _why_fenced(core, document)
    if why is not None:
        return core, (Fence(why),)
    if core.document is not None and document.order == core.document.order:
        return core, ()
    deployments = dict(core.deployments)
    for fresh in document.deployments:
        old = deployments.get(fresh.name)
        if old is None or fresh.serial >= old.serial:
            deployments[fresh.name] = fresh
    generations = dict(core.generations)
    for spec in document.ranks:
        generations[spec.deployment] = max(generations.get(spec.deployment, 0), spec.generation)
    before = core
    core = replace(
        core,
        term=document.term,
        instance=document.instance,
        accepted=document.order,
        document=document,
        deployments=deployments,
        refusals={
            spec.name: core.refusals[spec.name] for spec in document.ranks if spec.name in core.refusals
        },
        begun=frozenset(task.id for task in document.tasks),
    )
    core, acts = _reconcile(core)
    core = replace(core, generations=generations)
    save = SaveFences(document.order, document.instance, tuple(deployments.values()), generations)
    kills = tuple(act for act in acts if isinstance(act, Kill | Terminate))
    rest = tuple(act for act in acts if not isinstance(act, Kill | Terminate))
    begin = tuple(Begin(task) for task in document.tasks if task.id not in before.begun)
    return core, (*kills, save, *rest, *begin)


def _why_fenced(core: Core, document: Document) -> str | None:
    if not _is_ours(core, document):
        return f"it is of holder {document.holder}; this node obeys {core.holder}"
    if document.order < core.accepted:
        return f"it is {document.order}; {core.accepted} was accepted before"
    if document.term == core.term and core.instance not in ("", document.instance):
        return f"term {document.term} belongs to instance {core.instance}, not {document.instance}"
    return None


def _is_ours(core: Core, document: Document) -> bool:
    return document.holder == core.holder


# Ranks. ---------------------------------------------------------------------------------------------


def _note_rank(core: Core, name: str, state: RankState, *, served: bool) -> Core:
    rank = core.ranks.get(name)
    if rank is None:
        return core
    changed = replace(rank, state=state, served=rank.served or served)
    rows = dict(core.rows)
    if state in ("fallen", "unkillable"):
        rows[name] = "exited"
    elif state == "gone":
        rows[name] = "gone"
    elif state == "running":
        rows[name] = "started"
    return replace(core, ranks={**core.ranks, name: changed}, rows=rows)


def _note_told(core: Core, names: frozenset[str]) -> Core:
    ranks = {
        name: replace(rank, told_gone=True) if name in names and rank.state == "gone" else rank
        for name, rank in core.ranks.items()
    }
    return replace(core, ranks=ranks)


def _frozen(core: Core, name: str, reason: str, now: Instant) -> Step:
    """A frozen engine is the coordinator's to judge; without one, clients get a refusal and not a hang."""
    rank = core.ranks.get(name)
    if rank is None or rank.stopping or now.mono < core.lease_until:
        return core, ()
    return _kill(core, name, f"no coordinator, and the engine is frozen: {reason}")


def _note_head(core: Core, name: str, now: Instant, *, reached: bool) -> Step:
    """A follower never notices that rank 0 is gone; without a coordinator nobody tells its agent either."""
    rank = core.ranks.get(name)
    if rank is None or now.mono < core.lease_until:
        return core, ()
    since = rank.headless_since
    if since is None or since < core.lease_until:  # counted in an earlier absence of the coordinator
        since = now.mono
    if not reached and now.mono - since >= DEFAULTS.orphaned_follower_s:
        waited_s = DEFAULTS.orphaned_follower_s
        return _kill(core, name, f"no coordinator, and rank 0 has taken no connection for {waited_s:.0f} s")
    noted = replace(rank, headless_since=None if reached else since)
    return replace(core, ranks={**core.ranks, name: noted}), ()


def _kill(core: Core, name: str, reason: str) -> Step:
    """Of the agent's own accord, once; a fallen rank's remains get their last words."""
    rank = core.ranks.get(name)
    if rank is None or rank.stopping or rank.state in ("fallen", "gone"):
        return core, ()
    core = replace(core, ranks={**core.ranks, name: replace(rank, stopping=True)})
    return core, (Kill(name, reason),)


def _reconcile(core: Core) -> Step:
    """What the document asks for and the present ranks allow."""
    document = core.document
    if document is None:
        return core, ()
    commands: list[CoreCommand] = []
    listed = {spec.name: spec for spec in document.ranks}
    ranks = dict(core.ranks)
    for name, rank in core.ranks.items():
        if name in listed or document.holds(rank.spec.deployment):
            continue
        if rank.state == "gone":
            if rank.told_gone:
                del ranks[name]
                commands.append(Forget(name))
        elif not rank.stopping and rank.state != "fallen":  # a fallen rank's remains get their last words
            ranks[name] = replace(rank, stopping=True)
            commands.append(_stop(core, rank))
    core = replace(core, ranks=ranks)
    for spec in document.ranks:
        if spec.name not in core.ranks and not document.holds(spec.deployment):
            core, started = _start(core, spec)
            commands += started
    return core, tuple(commands)


def _stop(core: Core, rank: Existing) -> CoreCommand:
    """SIGTERM only to a rank 0 that has served and whose deployment was asked to stop: it may have requests
    to end. Everything else is killed: a follower takes 11 s to obey SIGTERM and saves nothing.
    """
    asked = core.deployments.get(rank.spec.deployment)
    if rank.spec.rank == 0 and rank.served and asked is not None and asked.desired == "down":
        return Terminate(str(rank.name), rank.spec.grace_s, "its deployment was asked to stop")
    return Kill(str(rank.name), "its document no longer lists it")


def _start(core: Core, spec: RankSpec) -> tuple[Core, tuple[CoreCommand, ...]]:
    name = parse_rank_name(spec.name)
    if name is None or (name.deployment, name.generation, name.rank) != (
        spec.deployment,
        spec.generation,
        spec.rank,
    ):
        return _refuse(core, spec, "fenced", "its name does not say what it is")
    highest = core.generations.get(spec.deployment, 0)
    if spec.generation < highest:
        return _refuse(core, spec, "fenced", f"generation {highest} of {spec.deployment} was seen before")
    if _is_spent(core, spec.name):
        return _refuse(core, spec, "spent", "a rank of this name was started before")
    if any(rank.state != "gone" for rank in core.ranks.values()):
        return core, ()  # its turn comes when the other rank is gone
    existing = Existing(name, spec, "starting")
    core = replace(
        core,
        ranks={**core.ranks, spec.name: existing},
        rows={**core.rows, spec.name: "intent"},
        folders=core.folders | {spec.name},
    )
    return core, (Start(spec),)


def _is_spent(core: Core, name: str) -> bool:
    """Whether a rank of this name was ever begun here; an intent without a folder is none."""
    return name in core.folders or core.rows.get(name, "intent") != "intent"


def _refuse(
    core: Core, spec: RankSpec, code: RefusalCode, reason: str
) -> tuple[Core, tuple[CoreCommand, ...]]:
    # The first reason is the one that says something; "spent" is often only its consequence.
    refusal = core.refusals.get(spec.name) or Refusal(spec.name, code, reason)
    return replace(core, refusals={**core.refusals, spec.name: refusal}), ()
