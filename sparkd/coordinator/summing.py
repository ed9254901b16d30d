"""Collective probes for people: all nodes together, then each pair, as far as the nodes are free for it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

import msgspec

from sparkd.coordinator.fabric import nodes_called
from sparkd.coordinator.planner import member_at
from sparkd.coordinator.ports import ports_of
from sparkd.coordinator.reconciler import Reconciler
from sparkd.diagnosis.catalogue import judge
from sparkd.diagnosis.evidence import Evidence
from sparkd.errors import SparkdError, UsageError
from sparkd.fabric.capacity import link_mbit
from sparkd.fabric.choice import Choice, Seat, choose
from sparkd.fabric.member import members_of
from sparkd.fleet import collectives
from sparkd.fleet.nodes import Node
from sparkd.gang.collective import PROBE_NAME, CollectiveAsk
from sparkd.profile.environment import is_nodes_secret, rank_environment
from sparkd.profile.images import in_image, pinned
from sparkd.profile.plan import runtime_of
from sparkd.profile.schema import Profile
from sparkd.profile.verdicts import engine_of
from sparkd.records.collective import CollectiveRank, CollectiveTest
from sparkd.records.defaults import DEFAULTS
from sparkd.records.document import TaskKind
from sparkd.records.image import ImageReport
from sparkd.records.intent import Descriptor, Intent
from sparkd.records.preflight import Member
from sparkd.records.rank import Address, RankSpec
from sparkd.records.report import NodeFacts, TaskResult
from sparkd.records.verdict import Severity, Verdict

_LOOK_S: Final = 0.2
_PORTS: Final = 3
"""So many are tried on rank 0's node."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A node as it was found just now."""

    node: Node
    facts: NodeFacts
    member: Member
    image: ImageReport | None = None


async def collective_tests(
    reconciler: Reconciler, names: Sequence[str], most_bytes: int, image: str | None = None
) -> AsyncIterator[CollectiveTest]:
    """Each test as it changes, and once more when it is over. Raises NotFound, UsageError before the first.

    Whoever stops listening ends it: the ranks are killed.
    """
    nodes = nodes_called(reconciler.fleet, names)
    if most_bytes < 8:
        raise UsageError("a sum has at least 8 bytes")
    if len(nodes) < 2:
        return
    seen = await asyncio.gather(*(_look(reconciler, node, image) for node in nodes))
    refused = _refused(seen, most_bytes, image)
    if refused:
        yield _not_run(seen, refused)
        return
    rounds = [[tuple(seen)]]
    if len(seen) > 2:
        rounds += _rounds(seen)
    for groups in rounds:
        async for test in _together(reconciler, groups, most_bytes, image):
            yield test


async def _look(reconciler: Reconciler, node: Node, image: str | None) -> _Seen:
    async def ask(kind: TaskKind, args: dict[str, str], within_s: float) -> TaskResult | None:
        return await reconciler.ask(node.id, kind, args, within_s)

    answers = {"facts": await ask("facts", {}, DEFAULTS.facts_s)}
    if image is not None:
        within_s = DEFAULTS.facts_s + DEFAULTS.image_facts_s
        answers["image"] = await ask("image", {"image": image}, within_s)
    member = member_at(node, answers)
    if node.facts is None:
        raise AssertionError("only nodes that said hello are asked")
    facts = replace(node.facts, fabric=member.fabric)
    report = member.image.report if member.image is not None else None
    return _Seen(node, in_image(facts, report) if image is not None else facts, member, report)


def _refused(seen: Sequence[_Seen], most_bytes: int, image: str | None) -> tuple[Verdict, ...]:
    """Why nothing of it is started: too little memory, an image that is not there."""
    members = tuple(one.member for one in seen)
    among = [one.verdict for one in judge(Evidence(members=members, sum_bytes=most_bytes))]
    found = [verdict for verdict in among if verdict.id == "DESKTOP_OOM_FREEZE"]
    for one in seen if image is not None else ():
        trouble = one.member.image.trouble if one.member.image is not None else None
        if trouble is not None:
            blocked = Verdict(trouble.id, Severity.BLOCK, trouble.title, trouble.said, remedy=trouble.remedy)
            found.append(replace(blocked, node=one.node.name))
        elif one.image is None:
            found.append(
                _unproven(f"nothing is known of the image there: {one.member.image_unknown}", one.node.name)
            )
    return tuple(found)


def _unproven(why: str, node: str | None = None) -> Verdict:
    return Verdict(
        "FABRIC_UNPROVEN",
        Severity.WARN,
        "an all-reduce could not be tried here",
        evidence=why,
        remedy="`sparkd nodes list` and `sparkd status` show what is there; try again later",
        node=node,
    )


def _not_run(seen: Sequence[_Seen], verdicts: Sequence[Verdict]) -> CollectiveTest:
    ranks = tuple(CollectiveRank(rank, one.node.name, alive=False) for rank, one in enumerate(seen))
    first = verdicts[0]
    reason = f"not run: {first.node or ''}: {first.evidence or first.title}"
    return CollectiveTest(ranks, over=True, reason=reason, verdicts=tuple(verdicts))


def _rounds(seen: Sequence[_Seen]) -> list[list[tuple[_Seen, ...]]]:
    """Every pair once, in rounds in which no node is in two pairs."""
    left = list(combinations(range(len(seen)), 2))
    rounds: list[list[tuple[_Seen, ...]]] = []
    while left:
        taken: list[tuple[int, int]] = []
        for pair in left:
            if not {place for one in taken for place in one} & set(pair):
                taken.append(pair)
        left = [pair for pair in left if pair not in taken]
        rounds.append([(seen[here], seen[there]) for here, there in taken])
    return rounds


async def _together(
    reconciler: Reconciler, groups: Sequence[tuple[_Seen, ...]], most_bytes: int, image: str | None
) -> AsyncIterator[CollectiveTest]:
    running: dict[int, CollectiveTest | None] = {}
    try:
        for group in groups:
            begun = await _begin(reconciler, group, most_bytes, image)
            if isinstance(begun, CollectiveTest):
                yield begun
            else:
                running[begun] = None
        while running:
            for number, before in tuple(running.items()):
                test = reconciler.look_at_probe(number)
                if test.over:
                    reconciler.end_probe(number)
                    del running[number]
                else:
                    running[number] = test
                if test.over or before is None or test.reason != before.reason or test.steps != before.steps:
                    yield test
            await asyncio.sleep(_LOOK_S)
    finally:
        for number in running:
            reconciler.end_probe(number)


async def _begin(
    reconciler: Reconciler, group: tuple[_Seen, ...], most_bytes: int, image: str | None
) -> int | CollectiveTest:
    """The number of the probe, or why there is none."""
    port = await _free_port(reconciler, group[0].node)
    # After the last wait: a launch may have begun meanwhile.
    for one in group:
        why = collectives.busy(reconciler.fleet, one.node.id)
        if why is not None:
            return _not_run(group, [_unproven(why, one.node.name)])
    try:
        ask = _ask(group, image)
    except SparkdError as error:
        return _not_run(group, [_unproven(str(error))])
    if port is None:
        return _not_run(group, [_unproven("no free port was found for the rendezvous", group[0].node.name)])
    return reconciler.begin_probe(ask, [one.node.id for one in group], port, most_bytes)


def _ask(group: Sequence[_Seen], image: str | None) -> CollectiveAsk:
    """As a gang on these nodes would meet. Raises what a plan raises."""
    choice = choose(members_of([one.facts for one in group]))
    specs = tuple(
        _spec(rank, one, seat, choice, image)
        for rank, (one, seat) in enumerate(zip(group, choice.seats, strict=True))
    )
    return CollectiveAsk("", specs, link_mbit(choice))


def _spec(rank: int, one: _Seen, seat: Seat, choice: Choice, image: str | None) -> RankSpec:
    bare = Profile.model_validate({"schema": "sparkd/v1", "name": "probe", "model": {"path": "/"}})
    environment = rank_environment(one.facts, bare, {}, choice, seat)
    values = {each.name: each.value for each in environment.values if not is_nodes_secret(each)}
    nothing = Intent(profile_name="", profile={})
    return RankSpec(
        name="",
        deployment=PROBE_NAME,
        generation=0,
        rank=rank,
        ranks=len(choice.seats),
        runtime=runtime_of(one.facts, image),
        engine=engine_of(one.facts).name,
        args=(),
        env=dict.fromkeys(environment.masked, "") | values,
        rendezvous=Address(choice.seats[0].address, 0),
        descriptor=Descriptor(PROBE_NAME, nothing, 0, 0, (), 0),
        rdma=choice.is_rdma,
        image=pinned(image, one.image),
    )


async def _free_port(reconciler: Reconciler, node: Node) -> int | None:
    last = DEFAULTS.rendezvous_port_last - (collectives.next_number(reconciler.fleet) * _PORTS) % 100
    wanted = [{"port": last - at, "for": "probe"} for at in range(_PORTS)]
    result = await reconciler.ask(node.id, "port", {"ports": wanted}, DEFAULTS.facts_s)
    if result is None or not result.ok:
        return None
    try:
        told = ports_of(result)
    except msgspec.ValidationError:
        return None
    return next((one.port for one in told if one.free), None)
