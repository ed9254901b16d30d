"""What speaks against a launch, from the plan and the answers of its nodes. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from sparkd.detect import node as detect
from sparkd.diagnosis.catalogue import judge as diagnose
from sparkd.diagnosis.evidence import Evidence
from sparkd.records.intent import Intent
from sparkd.records.plan import Plan
from sparkd.records.preflight import Asked, Member
from sparkd.records.verdict import Severity, Verdict

_ORDER: Final = {Severity.BLOCK: 0, Severity.WARN: 1, Severity.NOTE: 2}

_OF_FABRIC: Final = frozenset(
    {"FABRIC_ABSENT", "HOST_IP_FOREIGN", "MTU_MISMATCH", "NO_COMMON_NETWORK", "RING_TOO_LARGE"}
)
"""What blocks by how the nodes' networks look."""


def judge(
    members: Sequence[Member], plan: Plan | None = None, intent: Intent | None = None
) -> tuple[Verdict, ...]:
    """Every finding, blocks first, the plan's own included; those whose ids the intent forces are waived.

    `members` are in rank order. Without a plan and its intent the nodes are judged by themselves.
    """
    found: list[Verdict] = []
    if plan is not None:
        members = _meeting(members, plan)
        found += _named(plan, [member.name for member in members if member.machine_unknown])
    for member in members:
        found += _detected(member)
        found += _of_image(member)
    asked = asked_of(intent) if intent is not None else None
    found += [one.verdict for one in diagnose(Evidence(members=tuple(members), asked=asked))]
    forced = intent.forced if intent is not None else ()
    told = [replace(verdict, waived=verdict.id in forced) for verdict in found]
    return tuple(sorted(told, key=lambda verdict: _ORDER[verdict.severity]))


def blocks_of(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Those that nobody waived."""
    return [one for one in verdicts if one.severity is Severity.BLOCK and not one.waived]


def asked_of(intent: Intent) -> Asked:
    """What a resolved profile wants of its nodes."""
    profile = intent.profile
    layout, model = profile.get("layout", {}), profile.get("model", {})
    return Asked(
        ranks=int(layout.get("tp", 1)) * int(layout.get("pp", 1)),
        mods=tuple(str(mod.get("name")) for mod in profile.get("mods", ())),
        model_id=model.get("id"),
        revision=model.get("revision"),
        args=profile.get("engine", {}).get("args", {}),
        image=intent.image,
    )


def _meeting(members: Sequence[Member], plan: Plan) -> list[Member]:
    """With the address at which the plan lets them meet: a fast copy goes the way of the ranks."""
    meets = {rank.node_name: rank.spec.env.get("VLLM_HOST_IP") for rank in plan.ranks}
    return [
        replace(member, fabric_address=meets.get(member.name) or member.fabric_address) for member in members
    ]


def _named(plan: Plan, silent: Sequence[str]) -> Iterator[Verdict]:
    """People know nodes by their names.

    Of the network of `silent` nodes only the hello is known, of when their agents started: it blocks nothing.
    """
    names = {rank.node: rank.node_name for rank in plan.ranks}
    for verdict in plan.verdicts:
        named = replace(verdict, node=names.get(verdict.node or "", verdict.node))
        if silent and verdict.severity is Severity.BLOCK and verdict.id in _OF_FABRIC:
            old = f"of {', '.join(silent)} as it was when its agent started"
            named = replace(named, severity=Severity.WARN, evidence=f"{verdict.evidence}; {old}")
        yield named


def _of_image(member: Member) -> Iterator[Verdict]:
    """What the node itself says against an image."""
    if member.image_unknown:
        yield Verdict("PREFLIGHT_ERROR", Severity.BLOCK, f"image: {member.image_unknown}", node=member.name)
    trouble = member.image.trouble if member.image is not None else None
    if trouble is not None:
        yield Verdict(
            trouble.id,
            Severity.BLOCK,
            trouble.title,
            evidence=trouble.said,
            remedy=trouble.remedy,
            node=member.name,
        )


def _detected(member: Member) -> Iterator[Verdict]:
    """What the watch of a node would find as well. A local set is a guest on its machine."""
    machine = member.machine
    if machine is None or member.local:
        return
    if member.clock_off_s is not None:
        yield from detect.clock(member.clock_off_s, member.clock_error_s, member.name)
    for verdict in (
        *detect.cma(machine.cma_total, machine.cma_free),
        *detect.driver(machine.driver, machine.driver_library),
        *detect.stale_shm((file.path, file.bytes) for file in machine.stale or ()),
    ):
        yield replace(verdict, node=member.name)
