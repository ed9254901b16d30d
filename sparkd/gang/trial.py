"""Whether a launch is preceded by a collective probe, and what comes of it. Rules of the gang machine.

It may keep a launch from happening only by what it has seen between the ranks. One that cannot be run warns.
"""

from dataclasses import replace
from typing import Any

from sparkd.fleet.nodes import Node
from sparkd.gang.collective import begin, deadline_of, look, observe, slowest, summary, waits_for
from sparkd.gang.state import Launch, Tried
from sparkd.gang.turn import Turn
from sparkd.records.collective import CollectiveTest
from sparkd.records.verdict import Verdict

_THEN = "the launch goes on if it cannot be tried, and ends here if it fails between the ranks"


def is_due(turn: Turn, launch: Launch) -> bool:
    """Not again while nothing changed since it passed; after a fall not even if it could not be tried.

    A probe of somebody else on these nodes is waited for by the agents, which run one rank at a time.
    """
    ask = launch.collective
    if ask is None or (turn.gang.tried is not None and turn.gang.tried.key == ask.key):
        return False
    record = turn.record
    if ask.key in turn.world.proven:
        turn.say("probe", "no collective probe: nothing that it depends on has changed since it passed")
        return False
    if ask.key == record.probed and record.fall is not None:
        turn.say(
            "probe", "no collective probe: it could not be tried before the last launch, on the same nodes"
        )
        return False
    return True


def start(turn: Turn, launch: Launch, nodes: tuple[Node, ...], port: int) -> None:
    ask, limits = launch.collective, turn.limits
    if ask is None:
        raise AssertionError("nothing is to be proved")
    probe = begin(
        ask,
        [node.id for node in nodes],
        turn.world.probe_number,
        port,
        turn.now.mono,
        within_s=limits.collective_short_s,
        most_bytes=limits.collective_short_bytes,
        limits=limits,
    )
    turn.change(collective=probe)
    _wait(turn, look(probe, turn.world.nodes, turn.now.mono, limits))


def is_over(turn: Turn) -> bool:
    """Whether the launch can be judged now. Takes in what the nodes say of the probe."""
    probe = turn.gang.collective
    if probe is None:
        return True
    probe = observe(probe, turn.world.nodes, turn.now.mono)
    test = look(probe, turn.world.nodes, turn.now.mono, turn.limits)
    if not test.over:
        turn.change(collective=probe)
        _wait(turn, test)
        return False
    took = f"the collective probe took {test.took_s:.0f} s"
    turn.say("probe", f"{took}: {summary(test)}" if test.passed else f"{took}: {test.reason}")
    turn.change(
        collective=None,
        tried=Tried(probe.key, test.passed, test.verdicts),
        probe_left=turn.gang.probe_left | {spec.name for spec in probe.specs},
    )
    return True


def verdicts(turn: Turn, launch: Launch) -> tuple[Verdict, ...]:
    """What the probe for this launch has found, waived where the intent forces it."""
    tried, ask = turn.gang.tried, launch.collective
    if tried is None or ask is None or tried.key != ask.key:
        return ()
    forced = turn.record.intent.forced
    return tuple(replace(verdict, waived=verdict.id in forced) for verdict in tried.verdicts)


def remembered(turn: Turn, launch: Launch) -> dict[str, Any]:
    """What the record keeps of it as the launch goes on."""
    tried, ask = turn.gang.tried, launch.collective
    if ask is None:
        return {"probed": "", "proven": False}
    proven = tried.proved if tried is not None else ask.key in turn.world.proven
    return {"probed": ask.key, "proven": proven}


def _wait(turn: Turn, test: CollectiveTest) -> None:
    rank = slowest(test)
    probe = turn.gang.collective
    if probe is not None:
        node = probe.nodes[rank.rank]
        deadline = deadline_of(probe, turn.limits)
        turn.wait(
            f"the collective probe: {waits_for(test)}", _THEN, rank=rank.rank, node=node, deadline=deadline
        )
