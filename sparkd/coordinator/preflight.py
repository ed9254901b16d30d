"""A preflight for people: the questions of a launch, asked at once of all its nodes; nothing is started."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from sparkd.coordinator.planner import member_at, members_now, plan_now
from sparkd.coordinator.ports import ports_of
from sparkd.coordinator.reconciler import Reconciler
from sparkd.errors import CoordinatorStarting, SparkdError
from sparkd.fleet.machine import with_kept_image
from sparkd.fleet.nodes import Node
from sparkd.gang.preflight import odd_answers, port_taken
from sparkd.gang.state import Answers
from sparkd.preflight.judge import judge
from sparkd.records.defaults import DEFAULTS
from sparkd.records.document import TaskKind
from sparkd.records.intent import Intent
from sparkd.records.plan import Plan
from sparkd.records.preflight import Member, Preflight
from sparkd.records.report import TaskResult
from sparkd.records.verdict import Severity, Verdict


def _says_nothing_of_files(member: Member) -> bool:
    return member.models is None and not member.models_unknown


def _silent(member: Member) -> Verdict:
    return Verdict(
        "PREFLIGHT_SILENT",
        Severity.BLOCK,
        "this node does not answer",
        evidence="nothing was heard of its files",
        remedy="see that it is on and that its agent runs: systemctl status sparkd-agent",
        node=member.name,
    )


class Check:
    """One look. Nodes answer side by side, so eight take as long as the slowest of them."""

    def __init__(self, reconciler: Reconciler) -> None:
        self._reconciler = reconciler
        self._began = reconciler.now()

    async def of_nodes(self) -> Preflight:
        """All nodes by themselves. Raises CoordinatorStarting while none can be heard yet."""
        fleet = self._reconciler.fleet
        if fleet.holding:
            raise CoordinatorStarting("the coordinator has just started and waits for its nodes")
        nodes = sorted((one for one in fleet.nodes.values() if one.facts is not None), key=lambda n: n.name)
        members = await self._look(nodes, {})
        return self._told(None, tuple(members.values()), judge(tuple(members.values())))

    async def of_launch(self, name: str, intent: Intent) -> Preflight:
        """What `up` would run into. Raises UsageError when the nodes for it are not there."""
        nodes = members_now(self._reconciler.fleet, name, intent)
        intent = with_kept_image(self._reconciler.fleet, name, intent)
        questions: dict[TaskKind, dict[str, Any]] = {"files": {"model": intent.profile.get("model", {})}}
        if intent.image is not None:
            questions["image"] = {"image": intent.image}
        members, port = await asyncio.gather(
            self._look(nodes, questions), self._fixed_port(name, intent, nodes[0])
        )
        plan: Plan | None = None
        found = [port] if port is not None else []
        found += [_silent(member) for member in members.values() if _says_nothing_of_files(member)]
        try:
            plan = plan_now(self._reconciler.fleet, name, intent, members)
        except SparkdError as error:
            found.append(Verdict("PLAN_INVALID", Severity.BLOCK, str(error)))
        except Exception as error:  # noqa: BLE001 - what nodes answered is theirs: it may be anything
            found.append(odd_answers(error))
        told = [replace(verdict, waived=verdict.id in intent.forced) for verdict in found]
        verdicts = (*told, *judge(tuple(members.values()), plan, intent))
        return self._told(name, tuple(members.values()), verdicts, plan)

    def _told(
        self,
        name: str | None,
        members: tuple[Member, ...],
        verdicts: tuple[Verdict, ...],
        plan: Plan | None = None,
    ) -> Preflight:
        took_s = self._reconciler.now().mono - self._began.mono
        return Preflight(name, members, verdicts, plan.memory if plan is not None else (), took_s)

    async def _look(
        self, nodes: Sequence[Node], questions: dict[TaskKind, dict[str, Any]]
    ) -> dict[str, Member]:
        """By node id, in the order of the nodes."""
        asked: dict[TaskKind, dict[str, Any]] = {"facts": {}, **questions}
        answers = await asyncio.gather(
            *(self._ask(node, kind, args) for node in nodes for kind, args in asked.items())
        )
        told = iter(answers)
        members = {}
        for node in nodes:
            results: Answers = {kind: next(told) for kind in asked}
            members[node.id] = member_at(node, results)
        return members

    async def _fixed_port(self, name: str, intent: Intent, node: Node) -> Verdict | None:
        """Whether the API's port is taken, if it cannot be another one and no rank of ours has it."""
        gang = self._reconciler.fleet.gangs.get(name)
        known = gang.record.api_port if gang is not None and gang.record.generation > 0 else None
        port = known or intent.profile.get("api", {}).get("port")
        if port is None or node.existing(name):
            return None
        result = await self._ask(node, "port", {"ports": [{"port": int(port), "for": "api"}]})
        if result is None or not result.ok:
            return None
        try:
            entries = ports_of(result)
        except msgspec.ValidationError as error:
            odd = odd_answers(error, "what the node says of the API's port is not understood")
            return replace(odd, node=node.name)
        taken = next((entry for entry in entries if not entry.free), None)
        return port_taken(msgspec.to_builtins(taken), node.name) if taken is not None else None

    async def _ask(self, node: Node, kind: TaskKind, args: dict[str, Any]) -> TaskResult | None:
        """None if no answer came in time; a node that is not in contact is not waited for."""
        patience_s = DEFAULTS.facts_s + (DEFAULTS.image_facts_s if kind == "image" else 0.0)
        return await self._reconciler.ask(node.id, kind, args, patience_s)
