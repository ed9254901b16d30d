"""The `docker` runtime: each rank is a container of an image that the site chose, so it outlives the agent.

The shim is what the container executes, in the image's own python. Its record, not the engine's, says how the
rank ended, and the log is the shim's too: with an engine that is down a container's output stands still
after 64 KiB, and the rank with it. The container adds the name that can be used once, the control group, the
image's files, and a `/dev/shm` of the rank's own.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from sparkd.clock import Instant
from sparkd.engine.environment import diverts
from sparkd.engine.plugin import plugin_folder, with_plugin
from sparkd.errors import DockerRefused, DockerUnreachable, ImageUnusable, RankNotStarted, Spent
from sparkd.failpoints import VARIABLE as FAILPOINTS
from sparkd.failpoints import passed
from sparkd.records.defaults import DEFAULTS, Defaults
from sparkd.records.names import parse_rank_name
from sparkd.records.rank import RankSpec
from sparkd_agent.account import Account
from sparkd_agent.cgroup import group_of
from sparkd_agent.config import MODULES
from sparkd_agent.kill import kill_exactly
from sparkd_agent.members import Marks, RankMembers, end_all
from sparkd_agent.procfs import ProcFs
from sparkd_agent.rankfolder import RankFolder
from sparkd_agent.runtime.base import DEFAULT_PATH, Launch, RankHandle
from sparkd_agent.runtime.container import (
    CACHE_VARIABLES,
    INFINIBAND,
    LABEL_FOLDER,
    LABEL_RANK,
    Mount,
    RankContainer,
    outermost,
    with_entrypoint,
)
from sparkd_agent.runtime.docker_api import Attached, DockerApi
from sparkd_agent.runtime.docker_trouble import IMAGE, REFUSED, gpu_requests, in_words, trouble_of
from sparkd_agent.runtime.handover import SHIM, make_folder, recorded, shim_spec, shim_words, started
from sparkd_agent.runtime.images import COMMAND, PYTHONS, Image, Images

log = logging.getLogger("sparkd.agent")

_STDIN: Final = 0
_AGAIN_S: Final = 1.0
"""Between two questions to an engine that does not answer."""
_MAY_RUN: Final = ("running", "restarting", "paused")


@dataclass(frozen=True, slots=True)
class _Container:
    rank: str
    id: str
    state: str
    folder: str
    pid: int
    has_folder: bool

    @property
    def may_run(self) -> bool:
        return self.state in _MAY_RUN

    @property
    def is_looked_after(self) -> bool:
        return self.may_run and self.has_folder


class DockerRuntime:
    """Needs a running event loop for `start` and `stop`.

    `roots` are folders of models, `caches` is where compiled things are kept between boots, `files` where the
    agent puts files of profiles. `command` is how vLLM is started in an image.
    """

    def __init__(
        self,
        ranks: str | Path,
        api: DockerApi,
        images: Images,
        *,
        caches: Path,
        roots: tuple[str, ...] = (),
        files: Path | None = None,
        procfs: ProcFs | None = None,
        limits: Defaults = DEFAULTS,
        command: tuple[str, ...] = COMMAND,
    ) -> None:
        self._ranks = Path(ranks).absolute()
        self._api = api
        self._images = images
        self._caches = caches
        self._roots = roots
        self._files = files
        self._procfs = procfs or ProcFs()
        self._limits = limits
        self._command = command

    async def start(self, spec: RankSpec, launch: Launch) -> RankHandle:
        folder = make_folder(self._ranks, spec)
        try:
            folder.container.touch(0o600)
            await self._clear(spec.name)
            attached = await asyncio.to_thread(self._ask_for, folder, spec, launch)
        except OSError as error:
            raise RankNotStarted(f"{spec.name}: no container could be asked for: {error}") from error
        except (DockerUnreachable, DockerRefused) as error:
            await self._abandon(spec.name)
            why = f"{spec.name}: no container: {in_words(error)}"
            raise RankNotStarted(why, _cause_of(error)) from error
        passed("agent.7-shim-spawned")
        try:
            answer = await self._answer(folder, attached)
            handle = self._with_group(started(folder, answer))
        except BaseException:
            await self._abandon(spec.name)
            raise
        finally:
            attached.close()
        passed("agent.8-shim-answered")
        return handle

    def list(self) -> list[RankHandle]:
        """What has a folder here, and containers of this agent whose folder was lost. Also those that ended:
        the engine may have been away then.

        A corrupt record is a rank without known processes; raises StateTooNew for a later format. Without an
        engine that answers, folders and the kernel have to do.
        """
        containers = self._own_containers()
        if containers is not None:
            self._images.tidy()
        handles = []
        for folder in map(RankFolder, sorted(self._ranks.glob("*")) if self._ranks.is_dir() else ()):
            if not folder.container.exists():
                continue
            handle = self._with_group(recorded(folder))
            state = None if containers is None else containers.pop(folder.name, None)
            if handle.shim is None and (containers is None or (state is not None and state.may_run)):
                handle = replace(handle, coming_up=True, cgroup=self._group_of(state))
            handles.append(handle)
        return handles + [self._orphan(state) for state in (containers or {}).values()]

    async def stop(self, handle: RankHandle) -> None:
        if handle.shim is not None and handle.boot == self._procfs.boot_id():
            kill_exactly(self._procfs, handle.shim)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._limits.docker_tidy_s
        while True:
            try:
                return await asyncio.to_thread(self._remove, handle.name, Path(handle.folder))
            except (DockerUnreachable, DockerRefused) as error:
                why = in_words(error)
            if loop.time() > deadline:
                log.warning("the container of %s stays until the next start of a rank: %s", handle.name, why)
                return None
            await asyncio.sleep(_AGAIN_S)

    def forget(self, name: str) -> None:
        if parse_rank_name(name) is not None:
            RankFolder(self._ranks / name).remove()

    def close(self) -> None:
        """Nothing is held."""

    # Starting

    def _ask_for(self, folder: RankFolder, spec: RankSpec, launch: Launch) -> Attached:
        """Runs in a thread. Raises DockerUnreachable, DockerRefused; Spent for a name that is ours."""
        if spec.image is None:
            raise ImageUnusable(f"{spec.name} names no image")
        image = self._images.pinned(spec.image.name, spec.image.identity)
        cache = self._cache_of(image, launch)
        container = self._container(folder, spec, launch, image, cache)
        try:
            attached = self._started(container)
        except DockerRefused as error:
            if "setting rlimit" not in str(error):
                raise
            log.warning("%s may lock little memory, and RDMA needs much: %s", spec.name, error)
            self._remove(spec.name, folder.path)
            attached = self._started(replace(container, memlock=False))
        inside = self._inside(spec, launch, image, cache)
        body = shim_spec(folder, spec, inside, self._limits, folder_fd=None)
        try:
            attached.send(body, self._limits.docker_s)
        except DockerUnreachable:
            attached.close()
            raise
        return attached

    def _started(self, container: RankContainer) -> Attached:
        """With its shim waiting for a spec."""
        name = {"name": container.name}
        try:
            made = self._api.ask("POST", "/containers/create", container.body(), query=name)["Id"]
        except DockerRefused as error:
            if error.status == 409 and container.name in (self._own_containers() or {}):
                raise Spent(f"{container.name} was started before: {error}") from error
            raise
        attached = self._api.attach(made)
        try:
            self._api.ask("POST", f"/containers/{made}/start")
        except (DockerUnreachable, DockerRefused):
            attached.close()
            raise
        return attached

    def _container(
        self, folder: RankFolder, spec: RankSpec, launch: Launch, image: Image, cache: Path
    ) -> RankContainer:
        uid = os.geteuid()
        read = [*self._roots, str(plugin_folder()), str(SHIM)]
        if len(spec.args) > 1 and spec.args[0] == "serve" and Path(spec.args[1]).is_absolute():
            read.append(spec.args[1])  # a model outside of all roots
        if self._files is not None:
            read.append(str(self._files))
        armed = os.environ.get(FAILPOINTS)
        return RankContainer(
            name=spec.name,
            image=image.id,
            command=tuple(shim_words(_STDIN, spec.name, PYTHONS[0])),
            folder=str(folder.path),
            user=f"{uid}:{os.getegid()}",
            becomes=uid if launch.account is None else launch.account.uid,
            mounts=(
                *(Mount(path) for path in outermost(read) if Path(path).exists()),
                Mount(str(folder.path), writable=True),
                Mount(str(cache), writable=True),
            ),
            shm_bytes=spec.memory.shm_bytes or _half_of_memory(),
            log_bytes=self._limits.docker_log_bytes,
            infiniband=Path(INFINIBAND).is_dir(),
            gpus=gpu_requests(self._api.ask("GET", "/info")) if Path("/dev/nvidiactl").exists() else (),
            environment=((FAILPOINTS, armed),) if armed else (),
        )

    def _inside(self, spec: RankSpec, launch: Launch, image: Image, cache: Path) -> Launch:
        """The rank as the shim executes it: the image's own environment below the launch's."""
        caches = {name: str(cache / folder) for name, folder in CACHE_VARIABLES.items()}
        of_image = {name: value for name, value in image.environment.items() if diverts(name) is None}
        env = {"PATH": DEFAULT_PATH, **of_image, **caches, **launch.env}
        command = self._command if spec.kind == "serve" else (PYTHONS[0], *MODULES[spec.kind])
        if os.geteuid() != 0:
            env.setdefault("USER", "sparkd")  # an image knows no name for this user; libraries ask for one
        account = launch.account
        if account is not None and account.uid == os.geteuid():
            account = None  # nobody to become, and nothing is held that becoming takes
        return replace(
            launch,
            account=account,
            argv=with_entrypoint(image.entrypoint, command + launch.argv),
            env=with_plugin({name: value for name, value in env.items() if value}, plugin_folder()),
            cwd=caches["HOME"],
        )

    def _cache_of(self, image: Image, launch: Launch) -> Path:
        """Made with its folders, which are the rank's own. Raises OSError."""
        self._caches.mkdir(mode=0o700, parents=True, exist_ok=True)
        cache = self._caches / image.identity
        make_own(cache, CACHE_VARIABLES.values(), launch.account)
        return cache

    async def _answer(self, folder: RankFolder, attached: Attached) -> bytes:
        answer = await asyncio.to_thread(attached.first_word, self._limits.shim_start_s)
        (folder.path / "shim.err").write_bytes(attached.stderr)
        if answer is None:
            patience_s = self._limits.shim_start_s
            raise RankNotStarted(f"{folder.name}: its shim gave no sign of life for {patience_s:.0f} s")
        return answer

    async def _clear(self, beside: str) -> None:
        """End and remove what an earlier life left here and nobody looks after: a new rank is alone.

        It is this agent's, by its folder, and either not running or without a folder: the engine was away
        when the rank ended, or this agent's state was lost. Raises RankNotStarted if one cannot be ended.
        """
        for state in (await asyncio.to_thread(self._own_containers) or {}).values():
            if state.rank == beside or state.is_looked_after:
                continue
            log.warning("the container of %s was left here (%s): it is removed", state.rank, state.state)
            try:
                await asyncio.wait_for(self._end(state.rank, state), self._limits.kill_proof_s)
                await asyncio.to_thread(self._remove, state.rank, Path(state.folder))
            except TimeoutError:
                raise RankNotStarted(
                    f"{beside}: {state.rank} runs here still, and SIGKILL does not end it"
                ) from None
            except (DockerUnreachable, DockerRefused) as error:
                log.warning("the container of %s stays: %s", state.rank, in_words(error))

    async def _abandon(self, name: str) -> None:
        """Nothing of a rank that was reported as not started may run, nor begin to run later.

        The shim reads no spec any more: its standard input ends with the connection.
        """
        states = await asyncio.to_thread(self._own_containers) or {}
        await self._end(name, states.get(name))
        folder = str(self._ranks / name)
        await self.stop(RankHandle(name, folder, boot="", started=Instant(0.0, 0.0)))

    async def _end(self, name: str, state: _Container | None) -> None:
        marks = Marks(name, str(self._ranks / name), None, None, (), cgroup=self._group_of(state))
        await end_all(RankMembers(self._procfs, marks), self._limits.kill_repeat_s)

    # Looking

    def _own_containers(self) -> dict[str, _Container] | None:
        """By the rank's name; None when nobody can say. Another agent's ranks are none of ours."""
        query = {"all": "true", "filters": f'{{"label":["{LABEL_RANK}"]}}'}
        try:
            rows = self._api.ask(
                "GET", "/containers/json", query=query, patience_s=self._limits.docker_look_s
            )
            ours = [row for row in rows if self._is_ours(row.get("Labels") or {})]
            found = [self._looked_at(row) for row in ours]
        except (DockerUnreachable, DockerRefused) as error:
            log.warning("containers cannot be listed, folders have to do: %s", in_words(error))
            return None
        return {one.rank: one for one in found if one is not None}

    def _is_ours(self, labels: Mapping[str, str]) -> bool:
        return os.path.dirname(labels.get(LABEL_FOLDER, "")) == str(self._ranks)  # noqa: PTH120 - a text

    def _looked_at(self, row: Mapping[str, Any]) -> _Container | None:
        pid = 0
        if row["State"] == "running":
            try:
                pid = int(self._api.ask("GET", f"/containers/{row['Id']}/json")["State"]["Pid"])
            except DockerRefused:
                return None  # gone between two questions
        folder = row["Labels"][LABEL_FOLDER]
        return _Container(Path(folder).name, row["Id"], row["State"], folder, pid, Path(folder).is_dir())

    def _orphan(self, state: _Container) -> RankHandle:
        return RankHandle(
            state.rank,
            state.folder,
            boot=self._procfs.boot_id(),
            started=Instant(0.0, 0.0),
            shim=self._procfs.ref(state.pid) if state.pid else None,
            cgroup=self._group_of(state),
        )

    def _with_group(self, handle: RankHandle) -> RankHandle:
        if handle.shim is None or not self._procfs.alive(handle.shim):
            return handle
        return replace(handle, cgroup=group_of(handle.shim.pid))

    def _group_of(self, state: _Container | None) -> str | None:
        return None if state is None or not state.pid else group_of(state.pid)

    def _remove(self, name: str, folder: Path) -> None:
        """Idempotent; a container of that name that is another agent's stays."""
        try:
            labels = self._api.ask("GET", f"/containers/{name}/json")["Config"]["Labels"] or {}
            if labels.get(LABEL_FOLDER) == str(folder.absolute()):
                self._api.ask("DELETE", f"/containers/{name}", query={"force": "true", "v": "true"})
        except DockerRefused as error:
            if error.status not in (404, 409):  # gone, or being removed
                raise


def _cause_of(error: DockerUnreachable | DockerRefused) -> str:
    """The id of its verdict. None for what the next generation may do without: it asks for the image anew."""
    trouble = trouble_of(error)
    return "" if trouble in (IMAGE, REFUSED) else trouble.id


def make_own(folder: Path, names: Iterable[str], account: Account | None) -> None:
    """A folder and those of these `names` in it, given to the account. Raises OSError.

    Who owns a folder can put links into it, to what then becomes its own by root's hand: each is opened
    without following one, and what was opened is what is given away.
    """
    parent = os.open(folder.parent, os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        own = _given(folder.name, parent, account)
    finally:
        os.close(parent)
    try:
        for name in names:
            os.close(_given(name, own, account))
    finally:
        os.close(own)


def _given(name: str, parent: int, account: Account | None) -> int:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
    opened = os.open(name, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        if account is not None:
            os.fchown(opened, account.uid, account.gid)
    except OSError:
        os.close(opened)
        raise
    return opened


def _half_of_memory() -> int:
    """What systemd gives a unit's: a bound, of which nothing is taken before it is used."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
