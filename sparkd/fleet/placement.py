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
    ranks: int, names: tuple[str, ...], nodes: Mapping[str, Node], occupied: Mapping[str, str]
) -> Placement:
    """Take the nodes named, in that order, else the first free undrained nodes by name.

    `occupied` maps a node id to the other deployment that is on it.
    """
    if names:
        return _place_named(ranks, names, nodes, occupied)
    able = [node for node in sorted(nodes.values(), key=lambda n: n.name) if not node.drained]
    free = [node for node in able if node.in_contact and node.id not in occupied]
    if len(free) >= ranks:
        return Placement(nodes=tuple(node.id for node in free[:ranks]))
    if len(nodes) < ranks:
        return Placement(missing=f"{ranks} nodes are needed and {len(nodes)} are enrolled", hopeless=True)
    states = ", ".join(f"{n.name} {_why_not(n, occupied)}" for n in nodes.values() if n not in free)
    return Placement(missing=f"{ranks} free nodes (now {len(free)}; {states})")


def _place_named(
    ranks: int, names: tuple[str, ...], nodes: Mapping[str, Node], occupied: Mapping[str, str]
) -> Placement:
    if len(names) < ranks:
        return Placement(missing=f"{ranks} nodes are needed and {len(names)} are named", hopeless=True)
    chosen: list[Node] = []
    for name in names:
        node = next((n for n in nodes.values() if name in (n.name, n.id)), None)
        if node is None:
            known = ", ".join(sorted(n.name for n in nodes.values())) or "none"
            missing = f"no enrolled node is called {name!r} (enrolled: {known})"
            return Placement(missing=missing, hopeless=True)
        chosen.append(node)
    fit = [node for node in chosen if node.in_contact and node.id not in occupied and not node.drained]
    if len(fit) >= ranks:
        return Placement(nodes=tuple(node.id for node in fit[:ranks]))
    absent = next(node for node in chosen if node not in fit)
    return Placement(missing=f"node {absent.name}: it {_why_not(absent, occupied)}", node=absent.id)


def _why_not(node: Node, occupied: Mapping[str, str]) -> str:
    if node.drained:
        return "is drained"
    if node.id in occupied:
        return f"runs {occupied[node.id]}"
    if not node.greeted:
        return "has not said hello"
    return f"is {node.state}"
