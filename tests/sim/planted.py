"""Bugs planted on purpose: one rule of the machines switched off at a time. The search must find each.

python -m tests.sim.planted              searches 2,000 seeds for each, prints the first that finds it
python -m tests.sim.planted NAME SEED    plays one, prints its timeline
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from sparkd.fleet import amnesia, documents, machine, nodes
from sparkd.gang import falls, serving, silence, trial
from sparkd.gang.budget import Allowance
from sparkd.gang.turn import Turn
from sparkd.records.verdict import Severity
from sparkd_agent.core import machine as agent_core
from tests.sim import world as simulation
from tests.sim.schedule import play
from tests.sim.world import World


@dataclass(frozen=True)
class Planted:
    """`targets`: (module or class, attribute, what stands in its place)."""

    name: str
    rule: str
    targets: tuple[tuple[Any, str, Any], ...]


def _never_old(*_: Any) -> bool:
    return False


def _undelivered_counts(turn: Any, outcome: str) -> None:
    _note_pulse(turn, "unanswered" if outcome == "undelivered" else outcome)


def _only_running(fleet: Any) -> Any:
    return tuple(serial for serial in _serials(fleet) if serial.desired == "up")


def _always_allowed(*_: Any, **__: Any) -> Allowance:
    return Allowance(True, 0.1, "always")


def _careless_disk(self: Any, *words: Any) -> None:
    _init(self, *words)
    self.exclusive = False


def _start_knowing_all(self: Any, now: float) -> None:
    _start(self, now)
    self.fleet = replace(self.fleet, old=False)


def _any_holder_welcomed(fleet: Any, hello: Any, now: Any, limits: Any) -> Any:
    return _hello(fleet, replace(hello, lease_live=False), now, limits)


def _all_block(turn: Any, launch: Any) -> Any:
    return tuple(replace(one, severity=Severity.BLOCK) for one in _found(turn, launch))


def _enter_with_probe(self: Any, *words: Any, **record: Any) -> None:
    probe = self.gang.collective
    _enter(self, *words, **record)
    self.change(collective=probe)


_found = trial.verdicts
_enter = Turn.enter
_note_pulse = serving.note_pulse
_serials = documents._serials
_init = simulation.SimNode.__init__
_start = simulation.Coordinator.start
_hello = machine.hello
_always: Callable[..., bool] = lambda *_: True  # noqa: E731 - a one-line stand-in reads best as one

PLANTED = (
    Planted(
        "spent-name",
        "a name is started at most once",
        ((agent_core, "_is_spent", _never_old), (simulation.SimNode, "__init__", _careless_disk)),
    ),
    Planted(
        "unknown-is-not-lost",
        "a node of which nobody can be asked is not lost",
        ((silence, "_second_path_is_silent", _always),),
    ),
    Planted(
        "undelivered-pulse",
        "a pulse that could not be delivered says nothing about the engine",
        ((serving, "note_pulse", _undelivered_counts),),
    ),
    Planted(
        "tombstones",
        "every agent remembers what was stopped",
        ((documents, "_serials", _only_running),),
    ),
    Planted(
        "proof-after-restart",
        "an old rank is proved gone by a report that was made under a document without it",
        ((nodes.Node, "settled", property(lambda _: True)),),
    ),
    Planted(
        "seq-over-state",
        "a report that was overtaken changes no state",
        ((machine, "_is_fresh", _always),),
    ),
    Planted(
        "old-database",
        "a database that knows less than an agent is filled from the agents before it decides",
        ((amnesia, "_knows_more", _never_old), (simulation.Coordinator, "start", _start_knowing_all)),
    ),
    Planted(
        "probe-blocks",
        "a collective probe that could not be tried keeps no launch from happening",
        ((trial, "verdicts", _all_block),),
    ),
    Planted(
        "probe-stays",
        "a collective probe that is broken off is ended on all its nodes",
        ((Turn, "enter", _enter_with_probe),),
    ),
    Planted(
        "budget",
        "restarts are bounded",
        ((falls, "allowance", _always_allowed),),
    ),
    Planted(
        "holder",
        "a node obeys one holder, and a live lease of another instance ends a coordinator",
        (
            (agent_core, "_is_ours", _always),
            (machine, "_is_ours", _always),
            (machine, "hello", _any_holder_welcomed),
        ),
    ),
)


@contextmanager
def planted(bug: Planted) -> Iterator[None]:
    kept = [(where, name, where.__dict__[name]) for where, name, _ in bug.targets]
    for where, name, stand_in in bug.targets:
        setattr(where, name, stand_in)
    try:
        yield
    finally:
        for where, name, original in kept:
            setattr(where, name, original)


def find(bug: Planted, seeds: range) -> tuple[int, World | None, str] | None:
    """The first seed under which the bug breaks an invariant (or the machine)."""
    with planted(bug):
        for seed in seeds:
            try:
                world = play(seed)
            except (AssertionError, RecursionError, LookupError) as error:
                return seed, None, f"{type(error).__name__}: {str(error)[:80]}"
            if world.violations:
                return seed, world, world.violations[0]
    return None


def main(words: list[str]) -> int:
    if len(words) == 2:
        bug = next(bug for bug in PLANTED if bug.name == words[0])
        found = find(bug, range(int(words[1]), int(words[1]) + 1))
        sys.stdout.write((found[1].timeline() if found and found[1] else str(found)) + "\n")
        return 0
    missed = 0
    for bug in PLANTED:
        found = find(bug, range(2000))
        missed += found is None
        told = f"seed {found[0]}: {found[2]}" if found else "NOT FOUND in 2,000 seeds"
        sys.stdout.write(f"{bug.name:22} {told}\n")
        sys.stdout.flush()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
