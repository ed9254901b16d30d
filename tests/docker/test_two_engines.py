"""Two nodes, each with an engine of its own: what they compare, and what an engine can have against a rank.

Every trouble is real: the engine itself says it.
"""

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sparkd.local import Programs
from sparkd.records.status import DeploymentStatus
from tests.bed.containers import IMAGE, images
from tests.bed.disk import full
from tests.bed.local_set import Bed, Deployment, all_gone, ask, until
from tests.bed.stand_in_bed import stand_in_bed
from tests.docker.engine import DockerEngine, docker_engine

_COUNT = itertools.count(1)
_OWN_ENGINE = """
import os, pathlib, sys
config = pathlib.Path(sys.argv[sys.argv.index("--config") + 1])
if config.parent.name == "2":
    config.write_text(config.read_text().replace({first!r}, {second!r}))
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Before the agent of node 2: it is told of the other engine."""
CONTAINERS_BYTES = 1 << 20
"""What the second engine has for the files of its containers: enough for some, and soon full."""


@dataclass(frozen=True)
class Pair:
    bed: Bed
    first: DockerEngine
    second: DockerEngine

    def copy(self, image: str) -> None:
        archive = self.first.folder / "saved.tar"
        self.first.docker("save", "-o", str(archive), image)
        self.second.docker("load", "-i", str(archive))
        archive.unlink()

    def identity(self, engine: DockerEngine, image: str) -> str:
        return images(self.bed.folder, str(engine.socket)).find(image).identity


def _containers(engine: DockerEngine) -> Path:
    """Where it keeps what it knows of its containers."""
    return engine.folder / "data" / "containers"


@pytest.fixture(scope="module")
def shared_pair(shared_engine: DockerEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with docker_engine(tmp_path_factory.mktemp("second") / "engine") as second:
        # Later than the engine mounts its folder upon itself, which would hide it. Its `close` unmounts it.
        options = ("-t", "tmpfs", "-o", f"size={CONTAINERS_BYTES}", "tmpfs", str(_containers(second)))
        subprocess.run(["mount", *options], check=True)
        script = _OWN_ENGINE.format(first=str(shared_engine.socket), second=str(second.socket))
        programs = Programs()
        programs = Programs(agent=(sys.executable, "-c", script, *programs.agent))
        bed_folder = tmp_path_factory.mktemp("pair")
        with stand_in_bed(bed_folder, docker=str(shared_engine.socket), programs=programs) as bed:
            pair = Pair(bed, shared_engine, second)
            pair.copy(IMAGE)
            yield pair


@pytest.fixture
def pair(shared_pair: Pair, engine: DockerEngine) -> Iterator[Pair]:
    """Both engines answer, and keep nothing of the test."""
    yield shared_pair
    if not shared_pair.second.answers():
        shared_pair.second.start()
    for one in shared_pair.bed.client.status().deployments:
        if one.phase not in ("stopped", "failed"):
            assert not Deployment(shared_pair.bed, one.name).down().left_on
    until(lambda: not shared_pair.second.containers(), "the second engine to be empty")
    until(lambda: not engine.containers(), "the first engine to be empty")


@pytest.fixture
def name() -> str:
    return f"two{next(_COUNT)}"


def told(status: DeploymentStatus) -> set[tuple[str, str | None]]:
    return {(verdict.id, verdict.node) for verdict in status.verdicts}


def test_an_image_that_is_missing_on_one_node(pair: Pair, name: str) -> None:
    only = "sparkd-tests/only-there:1"
    pair.first.docker("tag", IMAGE, only)
    failed = pair.bed.up(name, image=only).until("failed")
    assert told(failed) == {("IMAGE_MISSING", "local-2")}
    assert "docker pull" in failed.verdicts[0].evidence


def test_a_name_of_two_contents_and_the_same_content_everywhere(pair: Pair, name: str) -> None:
    """Other content is refused, and named; once it is copied both engines give it one identity, by which the
    plan asks for it although the two know it by other ids.
    """
    moving = "sparkd-tests/two-contents:1"
    pair.first.docker("tag", IMAGE, moving)
    context = pair.bed.folder / "context"
    context.mkdir()
    (context / "Dockerfile").write_text(f"FROM {IMAGE}\nENV OTHER=yes\n")
    pair.second.docker("build", "-t", moving, str(context))
    mine, theirs = (pair.identity(engine, moving) for engine in (pair.first, pair.second))
    assert mine != theirs
    failed = pair.bed.up(name, image=moving).until("failed")
    (verdict,) = failed.verdicts
    assert (verdict.id, mine in verdict.evidence, theirs in verdict.evidence) == (
        "IMAGE_MISMATCH",
        True,
        True,
    )
    assert "docker save" in verdict.remedy

    pair.copy(moving)
    assert pair.identity(pair.second, moving) == mine
    deployment = pair.bed.up(name, image=moving)
    serving = deployment.ready()
    assert ask(deployment) == "84"
    (one,), (two,) = pair.first.containers(), pair.second.containers()
    assert {one["Names"][0], two["Names"][0]} == {f"/{deployment.rank_name(rank)}" for rank in range(2)}
    # The name moves on at one node while it serves: the gang stays, and the next launch compares again.
    pair.second.docker("build", "-t", moving, str(context))
    assert deployment.status().phase == "ready"
    pair.bed.client.restart(name, serving.generation)
    again = until(lambda: deployment.status().verdicts, "a verdict of the next launch")
    assert {one.id for one in again} == {"IMAGE_MISMATCH"}


def test_a_name_that_is_taken_on_one_node(pair: Pair, name: str) -> None:
    deployment = Deployment(pair.bed, name)
    stranger = deployment.rank_name(1, 1)
    body = {"Image": IMAGE, "Cmd": ["true"]}
    pair.second.api.ask("POST", "/containers/create", body, query={"name": stranger})
    pair.bed.up(name)
    after = deployment.ready(generation=2)
    (incident,) = deployment.incidents()
    assert incident["fall"]["cause"] == "DOCKER_NAME_TAKEN"
    assert "docker inspect" in incident["fall"]["remedy"]
    assert after.falls == 1
    assert [row["State"] for row in pair.second.containers() if row["Names"] == [f"/{stranger}"]] == [
        "created"
    ]
    pair.second.remove(stranger)


def test_no_space_on_one_node(pair: Pair, name: str) -> None:
    with full(_containers(pair.second)):
        failed = pair.bed.up(name).until("failed")
    assert told(failed) == {("DOCKER_NO_SPACE", "local-2")}
    assert "docker system df" in failed.verdicts[0].remedy
    assert "no space left on device" in failed.reason
    pair.bed.up(name)
    Deployment(pair.bed, name).ready()


def test_an_engine_that_is_down_and_comes_back_on_one_node(pair: Pair, name: str) -> None:
    deployment = pair.bed.up(name)
    before = deployment.ready()
    alive = deployment.all_processes()
    pair.second.stop()
    os.kill(deployment.process(0, "leader").pid, 9)
    down = until(lambda: deployment.status().verdicts, "a verdict")
    until(lambda: ("DOCKER_DOWN", "local-2") in told(deployment.status()), f"word of the engine: {down}")
    pair.second.start()
    deployment.ready(generation=before.generation + 1)
    all_gone(alive)


@pytest.mark.skipif(os.geteuid() != 0, reason="root becomes somebody whom the socket is not for")
def test_a_socket_that_is_not_for_everybody(pair: Pair) -> None:
    ask_as_nobody = (
        "import os, sys\n"
        "from sparkd.errors import DockerUnreachable\n"
        "from sparkd_agent.runtime.docker_api import DockerApi\n"
        "from sparkd_agent.runtime.docker_trouble import trouble_of\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try:\n"
        "    DockerApi('docker.sock').ask('GET', '/_ping')\n"
        "except DockerUnreachable as error:\n"
        "    print(trouble_of(error).id)\n"
    )
    # By a name in its own folder: what lies above it is closed to nobody as well.
    done = subprocess.run(
        [sys.executable, "-c", ask_as_nobody],
        cwd=pair.second.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "DOCKER_DENIED\n", done.stderr
