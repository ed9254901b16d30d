"""The fabric of nodes, for people: what a gang on them would use, and a test of it."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from sparkd.coordinator.reconciler import Reconciler
from sparkd.errors import NotFound
from sparkd.fabric.choice import choose, variables
from sparkd.fabric.findings import findings
from sparkd.fabric.member import members_of
from sparkd.fabric.pins import own_address
from sparkd.fabric.reach import judge_calls
from sparkd.fleet.nodes import Node
from sparkd.fleet.state import Fleet
from sparkd.records.defaults import DEFAULTS
from sparkd.records.document import TaskKind
from sparkd.records.fabric import Call, FabricSeat, FabricTest, FabricView, NodeFabric, Reached
from sparkd.records.facts import MachineFacts

T = TypeVar("T")


async def fabric_now(reconciler: Reconciler, names: Sequence[str] = ()) -> FabricView:
    """As `fabric_view`, of what the nodes find when they are asked; of a silent one what it showed last."""
    nodes = nodes_called(reconciler.fleet, names)
    answers = await asyncio.gather(*(_ask(reconciler, node) for node in nodes))
    found = dict(zip((node.id for node in nodes), answers, strict=True))
    return fabric_view(reconciler.fleet, [node.id for node in nodes], found)


async def _ask(reconciler: Reconciler, node: Node) -> NodeFabric | None:
    answer = await _asked(reconciler, node.id, "facts", {}, MachineFacts)
    return answer.fabric if answer else None


async def _asked(
    reconciler: Reconciler,
    node: str,
    kind: TaskKind,
    args: dict[str, Any],
    answer: type[T],
    *,
    within_s: float = DEFAULTS.facts_s,
) -> T | None:
    """None for a node that is out of contact, does not answer in time, or not in a way that is understood."""
    result = await reconciler.ask(node, kind, args, within_s)
    try:
        return msgspec.convert(result.result, answer) if result is not None and result.ok else None
    except msgspec.ValidationError:
        return None


class _Listening(msgspec.Struct):
    port: int


class _Calls(msgspec.Struct):
    reached: list[Reached]


class _Heard(msgspec.Struct):
    heard: list[str]


async def fabric_test(reconciler: Reconciler, names: Sequence[str] = ()) -> FabricTest:
    """Have the nodes call each other at the addresses where ranks would meet, all at once, both ways.

    Raises NotFound.
    """
    view = await fabric_now(reconciler, names)
    seats = {seat.node: seat for seat in view.seats}
    ports = dict(
        zip(seats, await asyncio.gather(*(_listen(reconciler, seat) for seat in view.seats)), strict=True)
    )
    called = dict(
        zip(
            seats,
            await asyncio.gather(*(_call(reconciler, seat, view.seats, ports) for seat in view.seats)),
            strict=True,
        )
    )
    heard = dict(
        zip(
            seats,
            await asyncio.gather(*(_heard(reconciler, node, ports[node]) for node in seats)),
            strict=True,
        )
    )
    calls = {
        (here.name, there.name): Call(
            here.name,
            there.name,
            called[here.node].get(there.address),
            None if (ears := heard[there.node]) is None else here.address in ears,
            _mtu_of(here),
        )
        for here in view.seats
        for there in view.seats
        if here is not there
    }
    verdicts = judge_calls([seat.name for seat in view.seats], calls)
    return FabricTest(view, tuple(calls.values()), tuple(verdicts))


async def _listen(reconciler: Reconciler, seat: FabricSeat) -> int | None:
    """None for a slow node too: whoever waited for it would find the others' ports closed again."""
    args, within_s = {"listen": seat.address}, DEFAULTS.fabric_ready_s
    answer = await _asked(reconciler, seat.node, "probe", args, _Listening, within_s=within_s)
    return answer.port if answer else None


async def _call(
    reconciler: Reconciler, seat: FabricSeat, seats: Sequence[FabricSeat], ports: Mapping[str, int | None]
) -> dict[str, Reached]:
    targets = [
        {"host": other.address, "port": ports[other.node]}
        for other in seats
        if other is not seat and ports[other.node] is not None
    ]
    if ports[seat.node] is None:
        return {}  # it did not answer: asking once more would only take longer
    args = {"own": seat.address, "reach": targets, "mtu": _mtu_of(seat)}
    answer = await _asked(reconciler, seat.node, "probe", args, _Calls)
    return {reached.host: reached for reached in answer.reached} if answer else {}


async def _heard(reconciler: Reconciler, node: str, port: int | None) -> list[str] | None:
    answer = None if port is None else await _asked(reconciler, node, "probe", {"heard": port}, _Heard)
    return answer.heard if answer else None


def _mtu_of(seat: FabricSeat) -> int | None:
    interface = seat.fabric.interface(seat.interface) if seat.fabric and seat.interface else None
    return interface.mtu if interface else None


def fabric_view(
    fleet: Fleet, names: Sequence[str] = (), found: Mapping[str, NodeFabric | None] | None = None
) -> FabricView:
    """Of the nodes with these names or ids, or of all that said hello. Raises NotFound.

    `found`, by node id, is newer than the hello.
    """
    nodes = nodes_called(fleet, names)
    facts = [
        replace(node.facts, fabric=(found or {}).get(node.id) or node.facts.fabric)
        for node in nodes
        if node.facts is not None
    ]
    if not facts:
        return FabricView("unseen", None, "no node has said hello yet", ())
    choice = choose(members_of(facts))
    seats = tuple(
        FabricSeat(
            seat.member.id,
            seat.member.name,
            seat.address,
            seat.interface,
            tuple(hca.device for hca in seat.hcas),
            {name: value for name, value, _ in variables(choice, seat)},
            fact.fabric,
        )
        for seat, fact in zip(choice.seats, facts, strict=True)
    )
    names_of = {seat.node: seat.name for seat in seats}
    told = tuple(
        replace(verdict, node=names_of.get(verdict.node or "", verdict.node))
        for verdict in (*findings(choice), *own_address(choice))
    )
    return FabricView(choice.topology, choice.network, choice.reason, seats, told)


def nodes_called(fleet: Fleet, names: Sequence[str]) -> list[Node]:
    """By name, all of them if none is named. Raises NotFound."""
    known = sorted((node for node in fleet.nodes.values() if node.facts), key=lambda node: node.name)
    found = []
    for name in names or [node.id for node in known]:
        node = next((one for one in known if name in (one.name, one.id)), None)
        if node is None:
            told = ", ".join(one.name for one in known) or "none"
            raise NotFound(f"no node {name} has said hello; these have: {told}")
        found.append(node)
    return found
