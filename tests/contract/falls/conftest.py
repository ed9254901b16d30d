"""One local set of stand-ins for all tests of this folder, a deployment of its own for each test."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bed.containers import socket_of_tests
from tests.bed.local_set import Bed, Deployment, processes_of, until
from tests.bed.ranks import by_docker
from tests.bed.stand_in import configure
from tests.bed.stand_in_bed import stand_in_bed

_COUNT = itertools.count(1)
SEGMENT_BYTES = 4096


@pytest.fixture(scope="session")
def shared_bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    docker = socket_of_tests() if by_docker() else None
    with stand_in_bed(tmp_path_factory.mktemp("falls"), docker=docker) as bed:
        yield bed


@pytest.fixture
def bed(shared_bed: Bed) -> Iterator[Bed]:
    """The set with all daemons alive; whatever the test deployed is down afterwards, and nothing is left."""
    (shared_bed.folder / "engine" / "settings.json").unlink(missing_ok=True)
    configure(shared_bed.folder / "engine", SHM_BYTES=SEGMENT_BYTES)
    shared_bed.start()
    yield shared_bed
    shared_bed.start()
    for one in shared_bed.client.status().deployments:
        shared_bed.client.down(one.name)
        stopped = Deployment(shared_bed, one.name).until("stopped")
        assert not stopped.left_on
        for generation in range(1, one.generation + 1):
            for rank in range(shared_bed.nodes):
                name = f"sparkd-{one.name}-g{generation}-r{rank}"
                until(lambda name=name: not processes_of(name), f"{name} to leave nothing", 5.0)  # type: ignore[misc]


@pytest.fixture
def engine(bed: Bed) -> Path:
    """The stand-in's folder, for `configure`."""
    return bed.folder / "engine"


@pytest.fixture
def name() -> str:
    """Of a deployment: no two tests of a run share one, since falls are counted by the day. The names of two
    workers must lead to rendezvous ports far from each other: their coordinators do not know of each other.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return f"d{next(_COUNT)}" + "z" * worker
