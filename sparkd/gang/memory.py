"""The memory-returned gate: a new generation starts when the old one's memory is back (cases 7 and 8). Pure.

The GB10 has one pool of memory. A driver that gives it back late, or never, makes each retry start with less.
"""

from dataclasses import dataclass

from sparkd.fleet.nodes import Node
from sparkd.records.defaults import GIB
from sparkd.records.rank import MemoryNeed


@dataclass(frozen=True, slots=True)
class Returned:
    """Whether a node's memory is back. `short` says in words what is missing."""

    back: bool
    enough: bool
    """The plan's need and reserve are covered all the same."""
    short: str = ""


def returned(node: Node, need: MemoryNeed) -> Returned:
    """Measure one node against its baseline; without one (adoption, first boot) against the plan's need.

    A node that cannot read its memory is not held back by it.
    """
    if node.sample is None or node.sample.memory is None:
        return Returned(back=True, enough=True)
    available = node.sample.memory.available
    target = need.need_bytes if node.baseline_bytes is None else node.baseline_bytes - need.margin_bytes
    enough = available >= need.need_bytes
    if available >= target:
        return Returned(back=True, enough=enough)
    what = "the plan needs" if node.baseline_bytes is None else "before the rank it had, less the margin,"
    short = f"{available / GIB:.1f} GiB available on {node.name}, {what} {target / GIB:.1f} GiB"
    return Returned(back=False, enough=enough, short=short)
