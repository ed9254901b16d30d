"""Which nodes a deployment gets, in rank order. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from sparkd.fleet.nodes import Node


@dataclass(frozen=True, slots=True)
class Placement:
    """`nodes` (ids, in rank order) when complete; else what is missing, in words, and which node if one."""

    nodes: tuple[str, ...] = ()
    missing: str = ""
    node: str | None = None
    hopeless: bool = False
    """Waiting will not help: a name that no enrolled node has."""


def place(
    ranks: int,
    names: tuple[str, ...],
    nodes: Mapping[str, Node],
    occupied: Mapping[str, str],
    keep: tuple[str, ...] = (),
) -> Placement:
    """Take the nodes named, in that order, else the first free undrained nodes by name.

    `occupied` maps a node id to what is on it: another deployment, or a probe that does not end. `keep` are
    the ids of the last generation: each stays in its place if it can, and a spare takes the place of the
    node it replaces, so that rank 0 and the endpoint move only when rank 0's node is lost.
    """
    problem = _hopeless(ranks, names, nodes)
    if problem:
        return Placement(missing=problem, hopeless=True)
    found = [_named(name, nodes) for name in names] if names else sorted(nodes.values(), key=lambda n: n.name)
    pool = [node for node in found if node is not None]
    fit = [node.id for node in pool if _why_not(node, occupied) is None]
    places: list[str | None] = [node_id if node_id in fit else None for node_id in keep[:ranks]]
    places += [None] * (ranks - len(places))
    spares = iter([node_id for node_id in fit if node_id not in places])
    filled = [place if place is not None else next(spares, None) for place in places]
    if all(place is not None for place in filled):
        return Placement(nodes=tuple(place for place in filled if place is not None))
    return _missing(ranks, pool, fit, occupied, keep[:ranks])


def _hopeless(ranks: int, names: tuple[str, ...], nodes: Mapping[str, Node]) -> str:
    for name in names:
        if _named(name, nodes) is None:
            known = ", ".join(sorted(node.name for node in nodes.values())) or "none"
            return f"no enrolled node is called {name!r} (enrolled: {known})"
    if names and len(names) < ranks:
        return f"{ranks} nodes are needed and {len(names)} are named"
    if len(nodes) < ranks:
        return f"{ranks} nodes are needed and {len(nodes)} are enrolled"
    return ""


def _named(name: str, nodes: Mapping[str, Node]) -> Node | None:
    return next((node for node in nodes.values() if name in (node.name, node.id)), None)


def _missing(
    ranks: int,
    pool: list[Node],
    fit: list[str],
    occupied: Mapping[str, str],
    keep: tuple[str, ...],
) -> Placement:
    """Name what is waited for: the node that was there before, the one node that is away, or how many."""
    unfit = [node for node in pool if node.id not in fit]
    before = [node for node in unfit if node.id in keep]
    if len(before) == 1 or len(unfit) == 1:
        absent = before[0] if len(before) == 1 else unfit[0]
        return Placement(missing=f"node {absent.name}: it {_why_not(absent, occupied)}", node=absent.id)
    states = ", ".join(f"{node.name} {_why_not(node, occupied)}" for node in unfit)
    return Placement(missing=f"{ranks} free nodes (now {len(fit)}; {states})")


def _why_not(node: Node, occupied: Mapping[str, str]) -> str | None:
    if node.drained:
        return "is drained"
    if node.id in occupied:
        return f"runs {occupied[node.id]}"
    if not node.greeted:
        return "has not said hello"
    if not node.in_contact:
        return f"is {node.state}"
    return None
