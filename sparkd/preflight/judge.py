"""What speaks against a launch, from the plan and the answers of its nodes. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from sparkd.preflight.checkpoints import checkpoint_verdicts
from sparkd.preflight.machines import machine_verdicts
from sparkd.preflight.member import Member
from sparkd.preflight.skew import skew_verdicts
from sparkd.profile.check import profile_of
from sparkd.records.intent import Intent
from sparkd.records.plan import Plan
from sparkd.records.verdict import Severity, Verdict

_ORDER = {Severity.BLOCK: 0, Severity.WARN: 1, Severity.NOTE: 2}


def judge(
    members: Sequence[Member], plan: Plan | None = None, intent: Intent | None = None
) -> tuple[Verdict, ...]:
    """Every finding, blocks first, the plan's own included; those whose ids the intent forces are waived.

    `members` are in rank order. Without a plan and its intent the nodes are judged by themselves.
    """
    names = {member.facts.id: member.name for member in members}
    found = [*(plan.verdicts if plan is not None else ()), *_found(members, plan, intent)]
    forced = intent.forced if intent is not None else ()
    told = [
        replace(verdict, node=names.get(verdict.node or "", verdict.node), waived=verdict.id in forced)
        for verdict in found
    ]
    return tuple(sorted(dict.fromkeys(told), key=lambda verdict: _ORDER[verdict.severity]))


def blocks_of(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Those that nobody waived."""
    return [one for one in verdicts if one.severity is Severity.BLOCK and not one.waived]


def _found(members: Sequence[Member], plan: Plan | None, intent: Intent | None) -> Iterator[Verdict]:
    profile = profile_of(intent) if intent is not None else None
    if profile is not None:
        yield from checkpoint_verdicts(profile, members)
    yield from skew_verdicts(members, uses_mods=profile is not None and bool(profile.mods))
    told = {rank.node for rank in plan.ranks if "GLOO_SOCKET_IFNAME" in rank.spec.env} if plan else set()
    for member in members:
        named = plan is None or member.facts.id in told
        yield from machine_verdicts(
            member, ranks=profile.layout.ranks if profile else len(members), named_interface=named
        )
