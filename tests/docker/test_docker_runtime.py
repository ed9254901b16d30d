"""The docker runtime against a real engine: what a container is given, how it ends, and who may be away."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sparkd.errors import RankNotStarted, Spent
from sparkd.records.rank import PinnedImage
from sparkd_agent.account import Account
from sparkd_agent.runtime.base import RankHandle, make_inner_launch
from sparkd_agent.runtime.docker import DockerRuntime
from sparkd_agent.runtime.docker_api import DockerApi
from sparkd_agent.runtime.images import Images
from tests.bed.ranks import HOSTILE, Rank, RankBed, rank_bed, rank_spec, until
from tests.docker.conftest import IMAGE, NOTHING
from tests.docker.engine import DockerEngine

ANYBODY = Account("anybody", 4711, 4712, "anybody", (4712, 4713), "/home/anybody")


class DockerBed:
    """Ranks of one agent in containers: `python3 hostile.py …` where vLLM would be."""

    def __init__(self, bed: RankBed, engine: DockerEngine, roots: tuple[str, ...] = ()) -> None:
        self.bed = bed
        self.engine = engine
        self.roots = (str(HOSTILE.parent), *roots)
        bed.runtime = self.runtime()

    def runtime(self, socket_path: str | None = None) -> DockerRuntime:
        """Another one is another run of the agent."""
        api = DockerApi(socket_path or str(self.engine.socket), 20.0)
        return DockerRuntime(
            self.bed.folder / "ranks",
            api,
            Images(api, self.bed.folder / "images"),
            caches=self.bed.folder / "caches",
            roots=self.roots,
            procfs=self.bed.procfs,
            limits=self.bed.limits,
            command=("python3", "-I", "-S", str(HOSTILE)),
        )

    async def start(
        self, name: str, *args: str, account: Account | None = None, image: str = IMAGE, **more: object
    ) -> Rank:
        identity = Images(self.engine.api, self.bed.folder / "images").find(image).identity
        pinned = PinnedImage(image, identity)
        spec = rank_spec(name, *args, runtime="docker", image=pinned, **more)  # type: ignore[arg-type] - passed
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
async def docker_bed(folder: Path, engine: DockerEngine, *roots: str) -> AsyncIterator[DockerBed]:
    async with rank_bed(folder) as bed:
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


def test_a_rank_is_the_nodes_user_and_its_shim_is_not(
    tmp_path: Path, engine: DockerEngine, name: str
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root becomes others")

    async def test() -> None:
        async with docker_bed(tmp_path, engine) as bed:
            rank = await bed.start(name, "wait", account=ANYBODY)
            await rank.says("ready")
            fields = dict(
                line.split(":\t", 1)
                for line in Path(f"/proc/{rank.leader}/status").read_text().splitlines()
                if ":\t" in line
            )
            assert fields["Uid"].split() == ["4711"] * 4
            assert fields["Gid"].split() == ["4712"] * 4
            assert fields["Groups"].split() == ["4712", "4713"]
            assert int(fields["CapEff"], 16) == 0
            assert fields["NoNewPrivs"] == "1"

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

    (tmp_path / "other").mkdir()
    (tmp_path / "mine").mkdir()
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
                limits=bed.bed.limits.__class__(docker_tidy_s=0.1),
            )
            with pytest.raises(RankNotStarted, match=r"Docker does not answer on this node.*restart docker"):
                await bed.start(name, "wait")

    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(path)
        deaf.listen(8)
        asyncio.run(test())
