"""Looks over the machine for a preflight: versions, limits, room, and who else computes here.

Everything is read from files. What may hang is asked in bounded time: a resolver for the machine's own name,
and the room of a file system, which may be another machine's.
"""

import os
import re
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import sparkd
from sparkd.detect.gpu import GpuLook
from sparkd.engine.plugin import plugin_folder
from sparkd.records.defaults import DEFAULTS
from sparkd.records.facts import DiskFacts, MachineFacts, MemoryLimit, ProcessFacts, StaleFile
from sparkd_agent import cgroup
from sparkd_agent.config import AgentConfig
from sparkd_agent.fabric import discover
from sparkd_agent.nccl_conf import nccl_files
from sparkd_agent.procfs import ProcFs, Stat
from sparkd_agent.runtime.unit import RANKS_GROUP
from sparkd_agent.versions import engine_versions, mods_fingerprint
from sparkd_agent.watch import driver, shm
from sparkd_agent.watch.sample import parse_cma, parse_memory, parse_swap

_ENGINE: Final = re.compile(
    r"VLLM::|sglang::|ray::"
    r"|(\S*/)?python\S* (\S+ )*(-m (vllm|sglang)\.|\S*/vllm serve )"
    r"|(\S*/)?(vllm serve |raylet|gcs_server|llama-server|ollama|tritonserver)\b"
)
"""How the titles of inference engines and of what starts them begin."""
_CONTAINER: Final = re.compile(r"(?:docker|cri-containerd|libpod|containerd)[-/]([0-9a-f]{12})[0-9a-f]{52}")


_AVAHI: Final = re.compile(r"avahi-daemon: running \[([^\]]+)\]")

FileSystem = tuple[int, int, int]
"""A folder's device, and the bytes free and in all of it."""


_GRAPHICAL: Final = ("wayland", "x11", "mir")


class Machine:
    """Reads below `root`, so that tests can lay out a machine of their own."""

    def __init__(
        self,
        config: AgentConfig,
        *,
        sees_all: bool,
        root: Path = Path("/"),
        plugin: Path | None = None,
        resolve_s: float = DEFAULTS.resolve_s,
        file_system: Callable[[Path], FileSystem | None] | None = None,
    ) -> None:
        """`sees_all`: the agent may read what processes of other users map."""
        self._config = config
        self._sees_all = sees_all
        self._root = root
        self._proc = root / "proc"
        self._procfs = ProcFs(self._proc)
        self._plugin = plugin_folder() if plugin is None else plugin
        self._resolve_s = resolve_s
        self._file_system = file_system or _file_system
        self._asking: dict[Path, threading.Thread] = {}
        """By folder who last asked for its room: one that hangs is not joined by more."""

    def look_over(self, own: frozenset[int], gpus: tuple[GpuLook, ...] | None) -> MachineFacts:
        """Blocks for some hundredths of a second, for `resolve_s` where something hangs. `own` are the pids
        of the ranks of this agent, which are no news; `gpus` the last look at the GPUs, None if there is
        none.
        """
        uname = os.uname()
        meminfo = self._bytes("proc/meminfo")
        cma_total, cma_free = parse_cma(meminfo)
        mdns_name = self._mdns_name()
        shm_free, shm_total = _room(self._root / "dev/shm") or (None, None)
        return MachineFacts(
            wall=time.time(),
            hostname=uname.nodename,
            hostname_addresses=_resolve(uname.nodename, self._resolve_s),
            mdns_name=mdns_name,
            mdns_addresses=None if mdns_name is None else _resolve(mdns_name, self._resolve_s),
            agent=sparkd.__version__,
            kernel=uname.release,
            system=self._system(),
            architecture=uname.machine,
            driver=driver.module_version(self._proc),
            driver_library=driver.library_version(
                tuple(self._root / folder.relative_to("/") for folder in driver.FOLDERS)
            ),
            firmware=self._firmware(),
            gpus=None if gpus is None else tuple(gpu.name for gpu in gpus),
            engines=tuple(engine_versions(name, one.python) for name, one in self._config.engines.items()),
            mods=mods_fingerprint(self._plugin),
            memlock_bytes=_limit(resource.RLIMIT_MEMLOCK),
            open_files=_limit(resource.RLIMIT_NOFILE),
            memory=parse_memory(meminfo),
            cma_total=cma_total,
            cma_free=cma_free,
            swap_total=parse_swap(meminfo),
            shm_total=shm_total,
            shm_free=shm_free,
            stale=self._stale(),
            disks=self._disks(),
            processes=self._others(own, gpus or ()),
            desktop=self._desktop(),
            fabric=None if self._config.local else discover(self._root, nccl_files=nccl_files(self._config)),
            memory_limits=() if self._config.local else self._memory_limits(),
        )

    def _bytes(self, name: str) -> bytes:
        try:
            return (self._root / name).read_bytes()
        except OSError:
            return b""

    def _line(self, name: str) -> str:
        return self._bytes(name).decode(errors="replace").strip()

    def _system(self) -> str:
        """Of DGX OS its own version as well: it is Ubuntu for everybody else."""
        release = _assignments(self._line("etc/os-release")).get("PRETTY_NAME", "")
        dgx = _assignments(self._line("etc/dgx-release"))
        told = " ".join(filter(None, (dgx.get("DGX_NAME"), dgx.get("DGX_SWBUILD_VERSION"))))
        return f"{told} ({release})" if told and release else told or release

    def _firmware(self) -> dict[str, str]:
        found = {"system": self._line("sys/class/dmi/id/bios_version")}
        for device in sorted((self._root / "sys/class/infiniband").glob("*")):
            found[device.name] = self._line(f"sys/class/infiniband/{device.name}/fw_ver")
        return {part: version for part, version in found.items() if version}

    def _desktop(self) -> str:
        """Of a session of a person that logind shows as open; the greeter's is none."""
        for path in sorted((self._root / "run/systemd/sessions").glob("*")):
            said = _assignments(self._line(f"run/systemd/sessions/{path.name}"))
            if said.get("TYPE") in _GRAPHICAL and said.get("CLASS") == "user":
                return said["TYPE"]
        return ""

    def _memory_limits(self) -> tuple[MemoryLimit, ...]:
        """Of the slice of ranks, and of where this agent is, whose children are ranks without systemd."""
        own = [line.split(":", 2)[-1] for line in self._line("proc/self/cgroup").splitlines()]
        found = cgroup.memory_limits((RANKS_GROUP, *own), self._root / "sys/fs/cgroup")
        return tuple(MemoryLimit(*one) for one in found)

    def _mdns_name(self) -> str | None:
        """Avahi shows it in its title: `avahi-daemon: running [spark1-2.local]`."""
        for pid, stat in self._procfs.stats().items():
            if stat.comm == "avahi-daemon" and (match := _AVAHI.match(self._procfs.title(pid))):
                return match[1]
        return None

    def _stale(self) -> tuple[StaleFile, ...] | None:
        # What processes of others map is not shown to everybody: nothing could be called unmapped then.
        if not self._sees_all:
            return None
        files = shm.unmapped(self._procfs, self._root / "dev/shm")
        return tuple(StaleFile(path, size) for path, size in files)

    def _disks(self) -> tuple[DiskFacts, ...]:
        """Once for each file system and use."""
        places = [("state", self._config.state), ("temporary", self._root / "tmp")]
        places += [("models", Path(root)) for root in self._config.model_roots]
        found: dict[tuple[str, int], DiskFacts] = {}
        for use, path in places:
            told = self._bounded(path)
            if told is not None:
                device, free, total = told
                found.setdefault((use, device), DiskFacts(use, str(path), free, total))
        return tuple(found.values())

    def _bounded(self, path: Path) -> FileSystem | None:
        """None also for a mount whose server is gone: the kernel lets nobody out of there, for hours."""
        before = self._asking.get(path)
        if before is not None and before.is_alive():
            return None
        answer: list[FileSystem | None] = []
        asking = threading.Thread(
            target=lambda: answer.append(self._file_system(path)), name="disk", daemon=True
        )
        self._asking[path] = asking
        asking.start()
        asking.join(self._resolve_s)
        return answer[0] if answer else None

    def _others(self, own: frozenset[int], gpus: Iterable[GpuLook]) -> tuple[ProcessFacts, ...]:
        used = {one.pid: one.bytes for gpu in gpus for one in gpu.processes or ()}
        stats = self._procfs.stats()
        found = []
        for pid, stat in stats.items():
            if pid in own or stat.ended:
                continue
            title = self._procfs.title(pid)
            if pid in used or _ENGINE.match(title):
                found.append(self._process(stat, title, used.get(pid)))
        return tuple(sorted(found, key=lambda one: one.pid))

    def _process(self, stat: Stat, title: str, gpu_bytes: int | None) -> ProcessFacts:
        groups = self._line(f"proc/{stat.pid}/cgroup")
        container = _CONTAINER.search(groups)
        return ProcessFacts(
            pid=stat.pid,
            title=_SECRET.sub(r"\1…", title or stat.comm)[:_TITLE_CHARACTERS],
            parent=stat.ppid,
            rank=self._procfs.rank_name(stat.pid),
            container=container[1] if container else None,
            rss_bytes=stat.rss_bytes,
            gpu_bytes=gpu_bytes,
        )


_TITLE_CHARACTERS: Final = 120
"""Of a command line, which may hold a prompt further on."""
_SECRET: Final = re.compile(
    r"(?i)(--?[\w-]*(?:key|token(?!izer)|secret|password)[\w-]*[= ])\S+(?: (?!-)\S+)*"
)
"""A flag with the keys that follow it; vLLM takes several."""


def _assignments(text: str) -> Mapping[str, str]:
    """Of a file of the shell's `NAME="value"` lines."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {name.strip(): value.strip().strip('"') for name, _, value in pairs if value}


def _room(path: Path) -> tuple[int, int] | None:
    """Bytes that users may still write on the file system, and all of it."""
    try:
        told = os.statvfs(path)
    except OSError:
        return None
    return told.f_bavail * told.f_frsize, told.f_blocks * told.f_frsize


def _file_system(path: Path) -> FileSystem | None:
    room = _room(path)
    try:
        return None if room is None else (path.stat().st_dev, *room)
    except OSError:
        return None


def _limit(which: int) -> int | None:
    soft = resource.getrlimit(which)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _resolve(hostname: str, within_s: float) -> tuple[str, ...] | None:
    """The addresses of a name; empty if it has none, None if the resolver does not answer in time."""
    answer: list[tuple[str, ...]] = []

    def ask() -> None:
        try:
            told = socket.getaddrinfo(hostname, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            answer.append(())
        else:
            answer.append(tuple(dict.fromkeys(str(one[4][0]) for one in told)))

    # A resolver may take half a minute, and getaddrinfo has no time-out of its own.
    asking = threading.Thread(target=ask, name="resolve", daemon=True)
    asking.start()
    asking.join(within_s)
    return answer[0] if answer else None
