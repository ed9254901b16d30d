"""Plans for the gang machine and for people who only want to look."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypedDict

from sparkd.coordinator.keys import KeyRing
from sparkd.diagnosis.odd import engine_of
from sparkd.errors import CoordinatorStarting, UsageError
from sparkd.fleet.machine import with_kept_image, world_of
from sparkd.fleet.nodes import Node
from sparkd.fleet.placement import place
from sparkd.fleet.state import Fleet
from sparkd.gang.preflight import rank_count
from sparkd.gang.record import GangRecord
from sparkd.gang.state import Answers, Launch, Planner
from sparkd.preflight.collective import ask_of
from sparkd.preflight.judge import judge
from sparkd.preflight.member import member_of
from sparkd.profile.plan import build_plan, needs_api_key
from sparkd.records.defaults import DEFAULTS
from sparkd.records.image import ImageReport
from sparkd.records.intent import Intent
from sparkd.records.plan import Plan
from sparkd.records.preflight import Member
from sparkd.records.report import NodeFacts


def make_planner(keys: KeyRing) -> Planner:
    """The planner that a fleet hands to its gangs."""

    def plan(record: GangRecord, nodes: tuple[Node, ...], answers: Mapping[str, Answers]) -> Launch:
        members = {node.id: member_at(node, answers[node.id]) for node in nodes}
        facts = tuple(replace(_facts(node), fabric=members[node.id].fabric) for node in nodes)
        key = keys.make(record.name) if needs_api_key(record.intent, facts) else None
        made = build_plan(
            record.name,
            record.intent,
            facts,
            generation=record.generation,
            serial=record.serial,
            api_port=record.api_port,
            rendezvous_port=record.rendezvous_ports[-1],
            rendezvous_ports=record.rendezvous_ports[:-1],
            **places_of(members),
            nccl=nccl_of(members),
            api_key=key,
            available=available(nodes),
        )
        specs = tuple(rank.spec for rank in made.ranks)
        return Launch(
            specs,
            judge(tuple(members.values()), made, record.intent),
            ask_of(specs, facts[: len(specs)], members, {node.id: node.boot for node in nodes}),
        )

    return plan


def member_at(node: Node, answers: Answers) -> Member:
    """Raises CoordinatorStarting for a node that has not said hello."""
    if math.isinf(node.clock_error_s):
        return member_of(_facts(node), answers)
    return member_of(
        _facts(node), answers, clock_off_s=-node.clock_offset_s, clock_error_s=node.clock_error_s
    )


class Places(TypedDict):
    model_path: dict[str, str]
    also_paths: dict[str, dict[str, str]]
    images: dict[str, ImageReport]


def places_of(members: Mapping[str, Member]) -> Places:
    """Where each node has its models, and what it says of the image. By node id."""
    found = {node_id: member.models for node_id, member in members.items() if member.models is not None}
    return {
        "model_path": {node_id: models.model.path for node_id, models in found.items()},
        "also_paths": {
            node_id: {name: one.path for name, one in models.also.items()}
            for node_id, models in found.items()
        },
        "images": {
            node_id: member.image.report
            for node_id, member in members.items()
            if member.image is not None and member.image.report is not None
        },
    }


def members_now(fleet: Fleet, name: str, intent: Intent) -> tuple[Node, ...]:
    """The nodes that `up` would use now, in rank order. Raises UsageError when they are not there."""
    gang = fleet.gangs.get(name)
    if gang is not None and gang.record.nodes:
        ids = gang.record.nodes
    else:
        world = world_of(fleet, name)
        placement = place(rank_count(intent.profile), intent.nodes, world.nodes, world.occupied)
        if placement.missing:
            raise UsageError(f"cannot plan {name}: needs {placement.missing}")
        ids = placement.nodes
    return tuple(fleet.nodes[node_id] for node_id in ids)


def plan_now(fleet: Fleet, name: str, intent: Intent, members: Mapping[str, Member] | None = None) -> Plan:
    """What `up` would start now; `members`: what its nodes answered to a preflight, by id.

    Raises as `members_now`.
    """
    nodes = members_now(fleet, name, intent)
    intent = with_kept_image(fleet, name, intent)
    gang = fleet.gangs.get(name)
    record = gang.record if gang is not None else None
    return build_plan(
        name,
        intent,
        tuple(_now(node, (members or {}).get(node.id)) for node in nodes),
        generation=(record.generation if record else 0) + 1,
        serial=record.serial if record else 1,
        api_port=(record.api_port if record else 0) or DEFAULTS.api_port_first,
        rendezvous_port=DEFAULTS.rendezvous_port_first,
        # A node that runs a rank, of this deployment or of another, has given its memory away.
        available=available(node for node in nodes if not node.existing()),
        **places_of(members or {}),
        nccl=nccl_of(members or {}),
    )


def _now(node: Node, member: Member | None) -> NodeFacts:
    """Its network as it was found just now, if it was asked."""
    facts = _facts(node)
    return facts if member is None else replace(facts, fabric=member.fabric)


def nccl_of(members: Mapping[str, Member]) -> dict[str, str]:
    """The versions that the engines which ranks run bring along, by node id."""
    return {
        node_id: engine.packages["nccl"]
        for node_id, member in members.items()
        if (engine := engine_of(member)) is not None and "nccl" in engine.packages
    }


def available(nodes: Iterable[Node]) -> dict[str, int]:
    """MemAvailable in bytes by node id, of the nodes that could read it."""
    memories = ((node.id, node.sample.memory) for node in nodes if node.sample is not None)
    return {node_id: memory.available for node_id, memory in memories if memory is not None}


def _facts(node: Node) -> NodeFacts:
    if node.facts is None:
        raise CoordinatorStarting(f"node {node.name} has not said hello yet")
    return node.facts
