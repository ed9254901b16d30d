"""The docker runtime against a real engine: what a container is given, how it ends, and who may be away."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sparkd.errors import DockerRefused, RankNotStarted, Spent
from sparkd_agent.account import Account
from sparkd_agent.runtime.base import RankHandle, make_inner_launch
from sparkd_agent.runtime.container import CACHE_VARIABLES
from sparkd_agent.runtime.docker import DockerRuntime
from sparkd_agent.runtime.docker_api import DockerApi
from sparkd_agent.runtime.docker_trouble import NO_GPU, gpu_requests, trouble_of
from sparkd_agent.runtime.images import Images
from tests.bed.containers import container_runtime, pinned
from tests.bed.ranks import Rank, RankBed, rank_bed, rank_spec, until
from tests.docker.conftest import IMAGE, NOTHING
from tests.docker.engine import DockerEngine

ANYBODY = Account("anybody", 4711, 4712, "anybody", (4712, 4713), "/home/anybody")


class DockerBed:
    """Ranks of one agent in containers: `python3 hostile.py …` where vLLM would be."""

    def __init__(self, bed: RankBed, engine: DockerEngine, roots: tuple[str, ...] = ()) -> None:
        self.bed = bed
        self.engine = engine
        self.roots = roots
        bed.runtime = self.runtime()

    def runtime(self, socket_path: str | None = None) -> DockerRuntime:
        """Another one is another run of the agent."""
        return container_runtime(
            self.bed.folder,
            socket_path or str(self.engine.socket),
            procfs=self.bed.procfs,
            limits=self.bed.limits,
            roots=self.roots,
        )

    async def start(
        self, name: str, *args: str, account: Account | None = None, image: str = IMAGE, **more: object
    ) -> Rank:
        content = pinned(self.bed.folder, str(self.engine.socket), image)
        spec = rank_spec(name, *args, runtime="docker", image=content, **more)  # type: ignore[arg-type] - passed
        launch = make_inner_launch(spec, rank_env={"FROM_NODE": "x"}, account=account)
        return self.bed.supervise(await self.bed.runtime.start(spec, launch), spec)

    async def adopt(self, rank: Rank, runtime: DockerRuntime) -> Rank:
        """As the next run of the agent does it."""
        rank.task.cancel()
        await asyncio.wait([rank.task])
        self.bed.ranks.remove(rank)
        self.bed.runtime = runtime
        (found,) = [one for one in runtime.list() if one.name == rank.handle.name]
        return self.bed.supervise(found, rank.supervisor.spec)


@asynccontextmanager
async def docker_bed(
    folder: Path, engine: DockerEngine, *roots: str, **limits: float
) -> AsyncIterator[DockerBed]:
    folder.mkdir(exist_ok=True)
    async with rank_bed(folder, **limits) as bed:
        yield DockerBed(bed, engine, roots)


def group_of(handle: RankHandle) -> set[int]:
    assert handle.cgroup is not None
    return {int(word) for word in Path(handle.cgroup, "cgroup.procs").read_text().split()}


def test_what_a_container_is_given(tmp_path: Path, engine: DockerEngine, name: str) -> None:
    model = tmp_path / "model"
    model.mkdir()
    words = ("$(true)", "a b", "'\"", "${HOME}", "-x", "ä;|", "")

    async def test() -> None:
        async with docker_bed(tmp_path, engine, str(model)) as bed:
            rank = await bed.start(name, "echo", *words, secrets={"VLLM_API_KEY": "s3cret"}, env={"P": "$Q"})
            said = await rank.says("argv ")
            assert said == f"argv {list(words)!r}"
            told = engine.inspect(name)
            assert "s3cret" not in repr(told)
            host = told["HostConfig"]
            assert (host["NetworkMode"], host["IpcMode"], host["RestartPolicy"]["Name"]) == (
                "host",
                "private",
                "no",
            )
            assert (host["Privileged"], host["CapDrop"]) == (False, ["ALL"])
            assert host["LogConfig"]["Type"] == "local"
            labels = told["Config"]["Labels"]
            assert (labels["sparkd.rank"], labels["sparkd.folder"]) == ("0", str(rank.folder.path))
            environment = Path(f"/proc/{rank.leader}/environ").read_bytes().split(b"\0")
            for wanted in (
                "P=$Q",
                "FROM_IMAGE=yes",
                "FROM_NODE=x",
                "VLLM_API_KEY=s3cret",
                f"SPARKD_RANK={name}",
            ):
                assert wanted.encode() in environment
            assert not [one for one in environment if one.startswith(b"PYTEST_")]
            assert Path(f"/proc/{rank.leader}/oom_score_adj").read_text() == "800\n"
            # Its own /dev/shm, models that it cannot write, and caches that it can.
            root = Path(f"/proc/{rank.leader}/root")
            (root / "dev/shm/mine").write_text("x")
            assert not Path("/dev/shm/mine").exists()
            options = _mount_options(rank.leader)
            assert "ro" in options[str(model)]
            cache = next(line for line in environment if line.startswith(b"VLLM_CACHE_ROOT=")).decode()
            assert "rw" in options[str(Path(cache.partition("=")[2]).parent)]

    asyncio.run(test())


def _mount_options(pid: int) -> dict[str, list[str]]:
    lines = [line.split() for line in Path(f"/proc/{pid}/mounts").read_text().splitlines()]
    return {fields[1]: fields[3].split(",") for fields in lines}


DAC_OVERRIDE, KILL, SETGID, SETUID = 1 << 1, 1 << 5, 1 << 6, 1 << 7


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def capabilities(pid: int, which: str = "CapEff") -> int:
    return int(status_of(pid)[which], 16)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes others")
def test_a_rank_is_the_nodes_user_and_its_shim_is_not(
    tmp_path: Path, engine: DockerEngine, name: str
) -> None:
    async def test() -> None:
        async with docker_bed(tmp_path, engine) as bed:
            rank = await bed.start(name, "wait", account=ANYBODY)
            await rank.says("ready")
            fields = status_of(rank.leader)
            assert fields["Uid"].split() == ["4711"] * 4
            assert fields["Gid"].split() == ["4712"] * 4
            assert fields["Groups"].split() == ["4712", "4713"]
            for kind in ("CapEff", "CapPrm", "CapInh", "CapAmb"):
                assert capabilities(rank.leader, kind) == 0, kind
            assert capabilities(rank.shim) == KILL | SETGID | SETUID, "to become the rank, and to end it"
            for pid in (rank.leader, rank.shim):
                assert status_of(pid)["NoNewPrivs"] == "1"
                assert capabilities(pid, "CapBnd") == KILL | SETGID | SETUID, "no way to more"

    asyncio.run(test())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's ranks are root")
@pytest.mark.parametrize("account", [None, Account("root", 0, 0, "root", (0, 44), "/root")])
def test_a_rank_that_is_root_has_one_capability(
    tmp_path: Path, engine: DockerEngine, name: str, account: Account | None
) -> None:
    """It may read models of other users, within its mounts; with it go shim and rank alike."""

    async def test() -> None:
        async with docker_bed(tmp_path, engine) as bed:
            rank = await bed.start(name, "worker", account=account)
            worker = int((await rank.says("worker")).split()[1])
            for pid in (rank.leader, rank.shim, worker):
                assert status_of(pid)["Uid"].split() == ["0"] * 4
                assert status_of(pid)["NoNewPrivs"] == "1"
                for kind in ("CapEff", "CapPrm", "CapBnd"):
                    assert capabilities(pid, kind) == DAC_OVERRIDE, kind
            rank.supervisor.kill("enough")
            assert (await rank.gone()).state == "gone"

    asyncio.run(test())


def test_what_is_compiled_is_kept_for_each_content(tmp_path: Path, engine: DockerEngine, name: str) -> None:
    """The next rank of an image finds what one before put into any cache; a rank of another one does not."""
    other = "sparkd-tests/other-content:1"
    (tmp_path / "Dockerfile").write_text(f"FROM {IMAGE}\nENV OTHER=yes\n")
    engine.docker("build", "-q", "-t", other, str(tmp_path))

    async def test() -> None:
        async with docker_bed(tmp_path / "node", engine) as bed:
            found = []
            for number, image in enumerate((IMAGE, IMAGE, other)):
                rank = await bed.start(name.replace("-g", f"-g{number + 1}000"), "caches", image=image)
                found.append(await rank.says("found "))
                await rank.gone()
                await bed.bed.runtime.stop(rank.handle)
            kept = sorted(CACHE_VARIABLES)
            assert found == ["found []", f"found {kept}", "found []"]
            assert len(list((tmp_path / "node" / "caches").iterdir())) == 2

    asyncio.run(test())


def test_an_exit_code_is_kept_and_nothing_stays(tmp_path: Path, engine: DockerEngine, name: str) -> None:
    async def test() -> None:
        async with docker_bed(tmp_path, engine) as bed:
            rank = await bed.start(name, "exits", "7")
            view = await rank.gone()
            assert view.exit is not None
            assert (view.exit.code, view.exit.how) == (7, "shim")
            assert "last words" in rank.texts()
            await bed.bed.runtime.stop(rank.handle)
            assert engine.containers() == []

    asyncio.run(test())


def test_an_essential_process_takes_all_of_its_rank_along(
    tmp_path: Path, engine: DockerEngine, name: str
) -> None:
    async def test() -> None:
        async with docker_bed(tmp_path, engine) as bed:
            rank = await bed.start(name, "worker")
            worker = int((await rank.says("worker")).split()[1])
            await until(
                lambda: ("VLLM::Worker_TP0", worker) in rank.supervisor.model_processes(), "the worker"
            )
            assert {worker, rank.leader, rank.shim} <= group_of(rank.handle)
            os.kill(worker, signal.SIGKILL)
            view = await rank.gone()
            assert view.exit is not None
            assert (view.exit.process, view.exit.signal) == ("VLLM::Worker_TP0", 9)
            assert not [pid for pid in (worker, rank.leader, rank.shim) if bed.bed.procfs.stat(pid)]

    asyncio.run(test())


def test_a_name_is_used_once(tmp_path: Path, engine: DockerEngine, name: str) -> None:
    async def test() -> None:
        async with docker_bed(tmp_path, engine) as bed:
            rank = await bed.start(name, "wait")
            with pytest.raises(Spent):
                await bed.start(name, "wait")
            # The folder is lost: the engine knows the name all the same.
            rank.folder.path.rename(tmp_path / "lost")
            with pytest.raises(Spent):
                await bed.start(name, "wait")
            (tmp_path / "ranks" / name).rename(tmp_path / "second")
            (orphan,) = bed.bed.runtime.list()
            assert (orphan.name, orphan.shim) == (name, rank.handle.shim)
            (tmp_path / "lost").rename(tmp_path / "ranks" / name)

    asyncio.run(test())


def test_a_name_that_is_somebody_elses(tmp_path: Path, engine: DockerEngine, name: str) -> None:
    async def test() -> None:
        async with (
            docker_bed(tmp_path / "other", engine) as other,
            docker_bed(tmp_path / "mine", engine) as bed,
        ):
            alien = await other.start(name, "wait")
            with pytest.raises(RankNotStarted, match=r"not this agent's.*remove it"):
                await bed.start(name, "wait")
            assert [one.shim for one in bed.bed.runtime.list()] == [None]
            assert alien.view.state == "running"
            assert engine.inspect(name)["State"]["Running"]

    asyncio.run(test())


def test_an_image_without_a_python(tmp_path: Path, engine: DockerEngine, name: str) -> None:
    async def test() -> None:
        async with docker_bed(tmp_path, engine) as bed:
            with pytest.raises(RankNotStarted, match="the image has no python3"):
                await bed.start(name, "wait", image=NOTHING)
            assert engine.containers() == [], "what was never started is not left"

    asyncio.run(test())


def test_the_next_run_of_the_agent_goes_on_with_it(tmp_path: Path, engine: DockerEngine, name: str) -> None:
    async def test() -> None:
        async with docker_bed(tmp_path, engine) as bed:
            first = await bed.start(name, "worker")
            await first.says("worker")
            again = await bed.adopt(first, bed.runtime())
            assert again.handle == first.handle
            await again.state("running")
            again.supervisor.kill("enough")
            assert (await again.gone()).state == "gone"

    asyncio.run(test())


def test_a_killed_engine_is_missed_by_nobody(tmp_path: Path, engine: DockerEngine, name: str) -> None:
    """With live-restore: the rank goes on, is adopted, ended and proved gone with no engine there at all."""

    async def test() -> None:
        async with docker_bed(tmp_path, engine) as bed:
            rank = await bed.start(name, "babbles")
            await rank.says("ready")
            engine.kill()
            before = len(rank.texts())
            assert before
            size = _log_bytes(rank)
            await until(lambda: _log_bytes(rank) > size + (1 << 20), "much more of its output")
            again = await bed.adopt(rank, bed.runtime())
            await again.state("running")
            assert again.handle.cgroup == rank.handle.cgroup
            again.supervisor.kill("enough")
            assert (await again.gone()).state == "gone"
            stopping = asyncio.create_task(bed.bed.runtime.stop(again.handle))
            engine.start()
            await asyncio.wait_for(stopping, 60)
            assert engine.containers() == []

    asyncio.run(test())


def _log_bytes(rank: Rank) -> int:
    """Of the whole stream: the name of a segment is where it begins."""
    newest = max(rank.folder.log.iterdir())
    return int(newest.name) + newest.stat().st_size


@pytest.mark.parametrize(
    "asked",
    [
        {"DeviceRequests": [{"Driver": "nvidia", "Count": -1, "Capabilities": [["gpu"]]}]},
        {"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}]},
        {"Runtime": "nvidia"},
    ],
    ids=["nvidia", "cdi", "runtime"],
)
def test_a_gpu_that_this_engine_cannot_give(engine: DockerEngine, asked: dict[str, object]) -> None:
    """In the engine's own words, and in ours before it is asked."""

    def made_and_started() -> None:
        made = engine.api.ask(
            "POST", "/containers/create", {"Image": IMAGE, "Cmd": ["true"], "HostConfig": asked}
        )
        engine.api.ask("POST", f"/containers/{made['Id']}/start")

    with pytest.raises(DockerRefused) as refused:
        made_and_started()
    assert trouble_of(refused.value) == NO_GPU
    with pytest.raises(DockerRefused) as foreseen:
        gpu_requests(engine.api.ask("GET", "/info"))
    assert trouble_of(foreseen.value) == NO_GPU
    for row in engine.containers():
        engine.remove(row["Id"])


# Orphans: containers whose rank nobody looks after any more. ----------------------------------------------


def states(engine: DockerEngine) -> dict[str, str]:
    return {row["Names"][0].lstrip("/"): row["State"] for row in engine.containers()}


def test_what_outlived_the_patience_with_its_engine_goes_at_the_next_start(
    tmp_path: Path, engine: DockerEngine, name: str
) -> None:
    async def test() -> None:
        async with docker_bed(tmp_path, engine, docker_tidy_s=0.1) as bed:
            first = await bed.start(name, "wait")
            await first.says("ready")
            engine.kill()
            first.supervisor.kill("enough")
            assert (await first.gone()).state == "gone"
            await bed.bed.runtime.stop(first.handle)
            engine.start()
            bed.bed.runtime.forget(name)
            await until(lambda: states(engine) == {name: "exited"}, "the container without a folder")
            second = await bed.start(name.replace("-g", "-g1000"), "wait")
            assert states(engine) == {second.handle.name: "running"}

    asyncio.run(test())


def test_of_a_lost_state_the_next_run_finds_what_ended_and_what_runs(
    tmp_path: Path, engine: DockerEngine, name: str
) -> None:
    """And nothing of another agent, though it has the same labels."""

    async def test() -> None:
        async with (
            docker_bed(tmp_path / "other", engine) as other,
            docker_bed(tmp_path / "mine", engine) as bed,
        ):
            ended, runs = name, name.replace("-g", "-g1000")
            alien = await other.start(name.replace("-g", "-g2000"), "exits", "0")
            await alien.gone()
            one, two = await bed.start(ended, "exits", "0"), await bed.start(runs, "wait")
            await one.gone()
            (tmp_path / "mine" / "ranks").rename(tmp_path / "lost")
            found = {handle.name: handle for handle in bed.runtime().list()}
            assert set(found) == {ended, runs}
            assert (found[ended].shim, found[ended].coming_up) == (None, False)
            assert found[runs].shim == two.handle.shim
            await bed.bed.runtime.stop(found[ended])
            assert states(engine) == {runs: "running", alien.handle.name: "exited"}
            (tmp_path / "lost").rename(tmp_path / "mine" / "ranks")

    asyncio.run(test())


def test_an_orphan_that_runs_is_ended_before_a_rank_is_started_beside_it(
    tmp_path: Path, engine: DockerEngine, name: str
) -> None:
    """The agent began without its state and without an engine: it could not know of it."""

    async def test() -> None:
        async with docker_bed(tmp_path, engine) as bed:
            orphan = await bed.start(name, "daemons")
            await orphan.says("daemon")
            orphan.task.cancel()
            bed.bed.ranks.remove(orphan)
            (tmp_path / "ranks").rename(tmp_path / "lost")
            inside = group_of(orphan.handle)
            assert len(inside) == 5, "shim, leader and three daemons"
            fresh = await bed.start(name.replace("-g", "-g1000"), "wait")
            assert not [pid for pid in inside if bed.bed.procfs.stat(pid)]
            assert states(engine) == {fresh.handle.name: "running"}

    asyncio.run(test())


def test_what_an_agent_looked_into_an_image_with_is_removed_by_the_next(
    tmp_path: Path, engine: DockerEngine
) -> None:
    mine, other = Images(engine.api, tmp_path / "mine"), Images(engine.api, tmp_path / "other")
    for images in (mine, other):
        labels = {
            "sparkd.look": "x",
            "sparkd.folder": str(tmp_path / ("mine" if images is mine else "other")),
        }
        engine.api.ask("POST", "/containers/create", {"Image": IMAGE, "Cmd": ["true"], "Labels": labels})
    mine.tidy()
    (left,) = engine.containers()
    assert left["Labels"]["sparkd.folder"] == str(tmp_path / "other")
    other.tidy()
    assert engine.containers() == []


def test_an_engine_that_comes_back_with_live_restore_keeps_it(
    tmp_path: Path, engine: DockerEngine, name: str
) -> None:
    async def test() -> None:
        async with docker_bed(tmp_path, engine) as bed:
            rank = await bed.start(name, "wait")
            await rank.says("ready")
            engine.kill()
            engine.start()
            assert engine.inspect(name)["State"]["Running"]
            engine.stop()
            engine.start()
            assert rank.view.state == "running"
            assert engine.inspect(name)["State"]["Pid"] == rank.shim

    asyncio.run(test())


def test_an_engine_that_comes_back_without_live_restore_ends_it(
    tmp_path: Path, engine: DockerEngine, name: str
) -> None:
    async def test() -> None:
        async with docker_bed(tmp_path, engine) as bed:
            rank = await bed.start(name, "wait")
            await rank.says("ready")
            engine.kill()
            engine.start(live_restore=False)
            view = await rank.gone()
            assert view.fell is not None
            await bed.bed.runtime.stop(rank.handle)
            engine.stop()
            engine.start()

    asyncio.run(test())


def test_an_engine_that_says_nothing(tmp_path: Path, engine: DockerEngine, name: str) -> None:
    """It takes the connection, and that is all: the start is over in time, with a reason and a remedy."""
    path = str(tmp_path / "s")

    async def test() -> None:
        async with docker_bed(tmp_path, engine) as bed:
            bed.bed.runtime = DockerRuntime(
                tmp_path / "ranks",
                DockerApi(path, 0.2),
                Images(DockerApi(path, 0.2), tmp_path / "images"),
                caches=tmp_path / "caches",
                limits=bed.bed.limits.__class__(docker_tidy_s=0.1, docker_look_s=0.1),
            )
            with pytest.raises(RankNotStarted, match=r"Docker does not answer on this node.*restart docker"):
                await bed.start(name, "wait")

    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(path)
        deaf.listen(8)
        asyncio.run(test())
