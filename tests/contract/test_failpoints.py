"""Every durable step x kill: real daemons, the killed one started again, and nothing that must not happen.

Whatever dies where: one generation lives, each name was started once, what was acknowledged is kept, and the
deployment comes to ready or to an end that says why.
"""

import contextlib
import itertools
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sparkd.errors import SparkdError
from sparkd.failpoints import read
from tests.bed.cluster import Cluster, DaemonProcess, cluster, until
from tests.bed.history import Asked, History, Recorder, promises, violations
from tests.bed.stand_in import configure

PAGE = Path(__file__).parents[2] / "docs" / "failpoints.md"
NAMES = re.findall(r"^\| `([a-z.\d-]+)`", PAGE.read_text(), re.MULTILINE)
_COUNT = itertools.count(1)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("points"), 2) as made:
        configure(made.engine, BOOT_S=0.1, EXIT_DELAY_S=0.3)
        yield made


@pytest.fixture
def bed(shared: Cluster) -> Cluster:
    """All daemons alive and unarmed, nothing deployed."""
    shared.start()
    return shared


@pytest.fixture
def name() -> str:
    return f"p{next(_COUNT)}-{os.environ.get('PYTEST_XDIST_WORKER', 'gw')}"


@contextmanager
def watched(bed: Cluster) -> Iterator[Recorder]:
    """Record what happens, and judge it at the end."""
    recorder = Recorder(bed)
    try:
        yield recorder
    except BaseException as error:
        bed.start()
        error.add_note(recorder.close().timeline())
        raise
    history = recorder.close()
    wrong = [*violations(history), *promises(history, bed.client.status())]
    assert not wrong, "\n".join([*wrong, history.timeline()])


class Person:
    """Asks until it is answered, as a person does, and remembers what was acknowledged."""

    def __init__(self, bed: Cluster, name: str, history: History) -> None:
        self.bed, self.name, self.history = bed, name, history
        self.intent = bed.intent()
        self.refused: list[str] = []

    def _ask(self, verb: str, act: Callable[[], object]) -> None:
        def try_once() -> bool:
            sure = False
            try:
                act()
                sure = True
            except SparkdError as error:
                self.refused.append(str(error))
            self.history.asked.append(Asked(time.time(), self.name, verb, sure))
            if not sure:
                time.sleep(0.1)  # as long as a daemon needs to start again, asking faster gains nothing
            return sure

        until(try_once, f"{verb} to be acknowledged")

    def up(self) -> None:
        self._ask("up", lambda: self.bed.client.up(self.name, self.intent))

    def down(self) -> None:
        self._ask("down", lambda: self.bed.client.down(self.name))

    def ready(self, generation: int = 0) -> int:
        """Wait until it is; gives the generation. Brought up again if it gave up and said why."""
        seen = self.bed.until(self.name, "ready", "failed", generation=generation)
        assert seen.reason
        assert seen.phase == "ready", seen.reason
        return seen.generation

    def stopped(self) -> None:
        seen = self.bed.until(self.name, "stopped")
        assert not seen.left_on
        until(lambda: not any(s.deployment == self.name for s in self.bed.sightings()), "nothing left", 5.0)


def start_again(daemon: DaemonProcess, over: threading.Event) -> None:
    """What a service manager does, once: the second life is not armed."""
    while daemon.alive and not over.wait(0.02):
        pass
    if not daemon.alive:
        assert daemon.wait() == -signal.SIGKILL
        daemon.start()


@contextmanager
def armed(daemon: DaemonProcess, failpoint: str) -> Iterator[None]:
    """The daemon, in a new life that ends at the failpoint; it must have come to it."""
    daemon.kill()
    daemon.start(failpoint)
    lives, over = daemon.lives, threading.Event()
    keeper = threading.Thread(target=start_again, args=(daemon, over))
    keeper.start()
    try:
        yield
        until(lambda: daemon.lives > lives, f"{daemon.name} to come to {failpoint}", 10.0)
    finally:
        over.set()
        keeper.join()


def kill_leader(bed: Cluster, name: str, node: int) -> None:
    leader = next(s for s in bed.sightings() if s.deployment == name and s.node == node and s.leader)
    os.kill(leader.ref.pid, signal.SIGKILL)


def a_life(person: Person, bed: Cluster) -> int:
    """Up, a fall, up again by itself, down: every kind of step is in it. Gives the first generation ready."""
    person.up()
    generation = person.ready()
    kill_leader(bed, person.name, 1)
    person.ready(generation + 1)
    person.down()
    person.stopped()
    return generation


# In the coordinator every transition is one transaction; a life has about 13 of them.
COORDINATOR = [
    *[f"coordinator.{step}:kill" for step in ("1-term", "2-term-taken", "5-launch-committed")],
    *[f"coordinator.3-commit:kill@{n}" for n in (2, 4, 8)],
    *[f"coordinator.4-committed:kill@{n}" for n in (1, 3, 4, 5, 7, 8, 9, 11)],
    *[f"coordinator.6-shown:kill@{n}" for n in (1, 4, 8)],
]
AGENT = [f"{name}:kill" for name in NAMES if name.startswith("agent.") and int(name[6:].split("-")[0]) < 22]
FORGETTING = "agent.22-forgotten:kill"
ADOPTING = ["agent.23-adopted:kill", "agent.24-adoption-done:kill"]
SHIM = [f"{name}:kill" for name in NAMES if name.startswith("shim.")]


@pytest.mark.parametrize("point", COORDINATOR)
def test_the_coordinator_dies_at(bed: Cluster, name: str, point: str) -> None:
    with watched(bed) as recorder:
        person = Person(bed, name, recorder.history)
        with armed(bed.coordinator, point):
            a_life(person, bed)


@pytest.mark.parametrize("point", AGENT)
def test_the_agent_dies_at(bed: Cluster, name: str, point: str) -> None:
    with watched(bed) as recorder:
        person = Person(bed, name, recorder.history)
        with armed(bed.agents[0], point):
            first = a_life(person, bed)
        # Only a name that is spent before anything ran costs a generation (cases 3 and 4).
        assert first == (2 if point.startswith("agent.6-") else 1)


@pytest.mark.parametrize("point", ADOPTING)
def test_the_agent_dies_while_it_adopts(bed: Cluster, name: str, point: str) -> None:
    with watched(bed) as recorder:
        person = Person(bed, name, recorder.history)
        person.up()
        generation = person.ready()
        with armed(bed.agents[0], point):
            assert person.ready() == generation
        person.down()
        person.stopped()


def test_the_agent_dies_while_it_forgets(bed: Cluster, name: str) -> None:
    """Old rows and folders go once more generations have ended than are kept."""
    with watched(bed) as recorder:
        person = Person(bed, name, recorder.history)
        person.up()
        generation = person.ready()
        with armed(bed.agents[0], FORGETTING):
            for _ in range(5):
                with contextlib.suppress(SparkdError):
                    bed.client.restart(name, generation)
                generation = person.ready(generation + 1)
        person.down()
        person.stopped()
    left = [
        path.name
        for path in (bed.agent_state(1) / "ranks").iterdir()
        if path.name.startswith(f"sparkd-{name}-")
    ]
    assert len(left) <= 4


@pytest.mark.parametrize("point", SHIM)
def test_a_shim_dies_at(bed: Cluster, name: str, point: str) -> None:
    """All shims of one node: its ranks do not live, nothing of them stays, and the cause is told."""
    agent = bed.agents[0]
    agent.kill()
    agent.start(point)
    with watched(bed) as recorder:
        person = Person(bed, name, recorder.history)
        person.up()
        if point.startswith(("shim.1", "shim.2")):
            bed.until(name, "recovering", "failed")
            fall = bed.until(name, "recovering", "failed", "launching").last_fall
            assert fall is not None
            assert fall.rank == 0
        else:
            kill_leader(bed, name, person.ready())
        agent.kill()
        agent.start()
        person.ready(2)
        person.down()
        person.stopped()


CAN_FAIL = [n for n in NAMES if re.match(r"agent\.(1|3|5|6|9|14|16|18|20)-|coordinator\.3-", n)]


@pytest.mark.parametrize("point", CAN_FAIL)
def test_a_step_fails_once(bed: Cluster, name: str, point: str) -> None:
    """As on a disk full for a moment: the daemon lives on, and what failed is told or done again."""
    daemon = bed.coordinator if point.startswith("coordinator") else bed.agents[0]
    daemon.kill()
    daemon.start(f"{point}:raise@{3 if daemon is bed.coordinator else 1}")
    lives = daemon.lives
    with watched(bed) as recorder:
        person = Person(bed, name, recorder.history)
        a_life(person, bed)
    assert daemon.alive
    assert daemon.lives == lives
    said = "".join([*(one.log.read_text() for one in bed.daemons), *person.refused])
    assert f"failpoint {point}" in said, "it came to it, and said so"
    daemon.kill()


def test_every_failpoint_is_tried() -> None:
    points = (*COORDINATOR, *AGENT, FORGETTING, *ADOPTING, *SHIM)
    assert {name for point in points for name in read(point)} == set(NAMES)
