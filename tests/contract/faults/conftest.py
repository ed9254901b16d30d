"""Fault cases of the table that need no other machine; each test names its case.

Where the others are: 1, 3, 4, 36 in `test_failpoints.py`; 2, 5, 6, 7, 22 in `falls/`; 16 in `test_shim.py`;
17 in `test_flood.py`; 19, 20 in `test_agent_protocol.py` and `test_rest.py`; 23 in `test_pid_reuse.py`.
"""

import itertools
import os
from collections.abc import Iterator

import pytest

from sparkd.errors import SparkdError
from tests.bed.cluster import Cluster, cluster
from tests.bed.stand_in import configure

_COUNT = itertools.count(1)


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("faults"), 3) as made:
        yield made


@pytest.fixture
def bed(shared_cluster: Cluster) -> Iterator[Cluster]:
    """Three nodes with all daemons alive; whatever the test deployed is down afterwards."""
    (shared_cluster.engine / "settings.json").unlink(missing_ok=True)
    configure(shared_cluster.engine, BOOT_S=0.1, EXIT_DELAY_S=0.2, TERM_S=1)
    shared_cluster.start()
    yield shared_cluster
    shared_cluster.start()
    clean(shared_cluster)


def clean(bed: Cluster) -> None:
    for one in bed.client.status().deployments:
        try:
            bed.client.down(one.name)
        except SparkdError as error:
            error.add_note(str(one))
            raise
        bed.until(one.name, "stopped")


@pytest.fixture
def name() -> str:
    """Of a deployment: no two tests of a run share one, since falls are counted by the day."""
    return f"f{next(_COUNT)}-{os.environ.get('PYTEST_XDIST_WORKER', 'gw')}"
