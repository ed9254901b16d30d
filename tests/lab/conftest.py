import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab.cluster import Cluster, cluster

_COUNT = itertools.count(1)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """a, b, c, d with stand-ins for vLLM, and the coordinator on a machine of its own."""
    with cluster(tmp_path_factory.mktemp("four")) as made:
        yield made


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The default is for tests of one component; here whole machines boot, five at a time on two cores."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))
    # Ten minutes of waiting, which must begin first where two workers share the files.
    items.sort(key=lambda item: item.path != Path(__file__).with_name("test_weather.py"))


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests measured, for docs/measurements.md."""
    for report in terminalreporter.getreports("passed"):
        for what, value in report.user_properties:
            terminalreporter.write_line(f"{report.nodeid}: {what}: {value}")


@pytest.fixture
def name() -> str:
    """Of a deployment: no two tests of a module share one, and no test of this very machine, which sees the
    processes of nodes too.
    """
    return f"lab{next(_COUNT)}"


@pytest.fixture
def up(four: Cluster, name: str) -> Iterator[Callable[..., None]]:
    """Bring the test's deployment up with `sparkd up`; it is down again afterwards, and all nodes are on."""
    four.lab.boot()
    four.in_contact()

    def bring_up(*words: str) -> None:
        four.sparkd("up", "tiny", "--name", name, *words)

    yield bring_up
    four.lab.boot()
    four.in_contact()
    for one in four.client.status().deployments:
        four.client.down(one.name)
        stopped = four.until(one.name, "stopped")
        assert not stopped.left_on
    for node in four.nodes:
        assert not four.leaders(node)
