"""The container of a rank: a table, in the words of the engine's API. Pure.

What each setting is for stands beside it. Its network and its pids are the node's: ranks meet over the
node's interfaces, and the pids in a rank's log, in `nvidia-smi` and in the agent's hands are the same. Its
`/dev/shm` and its file system are its own.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from sparkd.errors import UsageError
from sparkd.records.names import RankName, parse_rank_name
from sparkd_agent.procfs import FOLDER_VARIABLE, RANK_VARIABLE

LABEL_DEPLOYMENT: Final = "sparkd.deployment"
LABEL_GENERATION: Final = "sparkd.generation"
LABEL_RANK: Final = "sparkd.rank"
LABEL_FOLDER: Final = "sparkd.folder"
"""The rank's folder, by which an agent knows its own: several may use one engine (local sets)."""

INFINIBAND: Final = "/dev/infiniband"
CACHE_VARIABLES: Final = {
    "CUDA_CACHE_PATH": "cuda",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "HOME": "home",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "VLLM_CACHE_ROOT": "vllm",
    "XDG_CACHE_HOME": "xdg",
}
"""Folders below the cache of an image: what is compiled once is found by the next boot. A home is among them
because libraries write below it, and that of the image goes with the container."""

GpuRequest = dict[str, Any]
"""As the engine's API wants it in `DeviceRequests`."""


@dataclass(frozen=True, slots=True)
class Mount:
    """The same path on both sides, so that a plan's paths hold in the container."""

    path: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class RankContainer:
    """Everything that the engine is told of a rank. It may be shown to anybody: no secret is in it."""

    name: str
    image: str
    command: tuple[str, ...]
    """Of the shim; the image's own entry point is left out here and comes before the rank's command."""
    folder: str
    user: str
    """`UID:GID` of the shim, the agent's own: what it writes of the rank is out of the rank's reach."""
    becomes: int
    """The user id that the shim gives the rank."""
    mounts: tuple[Mount, ...]
    shm_bytes: int
    log_bytes: int
    memlock: bool = True
    """Without a limit; an engine without CAP_SYS_RESOURCE (rootless, in a container) cannot lift it."""
    infiniband: bool = False
    gpus: tuple[GpuRequest, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    """Of the shim."""

    def body(self) -> dict[str, Any]:
        """For `POST /containers/create`."""
        rank = _parsed(self.name)
        own = ((RANK_VARIABLE, self.name), (FOLDER_VARIABLE, self.folder))
        return {
            "Image": self.image,
            "Entrypoint": list(self.command),
            "Cmd": [],
            "User": self.user,
            "WorkingDir": "/",
            "Env": [f"{name}={value}" for name, value in (*own, *self.environment)],
            "Labels": {
                LABEL_DEPLOYMENT: rank.deployment,
                LABEL_GENERATION: str(rank.generation),
                LABEL_RANK: str(rank.rank),
                LABEL_FOLDER: self.folder,
            },
            # The spec comes through it, and holds secrets; it ends when the agent has written all of it.
            "OpenStdin": True,
            "StdinOnce": True,
            "AttachStdin": True,
            "AttachStdout": True,
            "AttachStderr": True,
            # An engine that goes down has nothing to wait for: the shim does not end before its rank.
            "StopSignal": "SIGKILL",
            # An image's own would have the engine run a program in it again and again.
            "Healthcheck": {"Test": ["NONE"]},
            "HostConfig": self._host(),
        }

    def _host(self) -> dict[str, Any]:
        devices = [INFINIBAND] if self.infiniband else []
        return {
            "NetworkMode": "host",
            "PidMode": "host",
            # Neither of the two is to be had where an engine maps users, unless this says so.
            "UsernsMode": "host",
            "IpcMode": "private",
            "ShmSize": self.shm_bytes,
            "Mounts": [mounted(mount) for mount in self.mounts],
            # A gang lives and dies together: who is started again is the coordinator's decision.
            "RestartPolicy": {"Name": "no"},
            "AutoRemove": False,
            "LogConfig": {
                "Type": "local",
                "Config": {"max-size": f"{self.log_bytes // 2}", "max-file": "2", "compress": "false"},
            },
            # Registered memory of the network cards is locked memory.
            "Ulimits": [{"Name": "memlock", "Soft": -1, "Hard": -1}] if self.memlock else [],
            "PidsLimit": -1,
            "Privileged": False,
            "CapDrop": ["ALL"],
            "CapAdd": list(_capabilities(self.user, self.becomes)),
            "SecurityOpt": ["no-new-privileges:true"],
            "Devices": [
                {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"} for path in devices
            ],
            "DeviceRequests": list(self.gpus),
        }


def outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """Without those that lie in another one of them."""
    found = {PurePosixPath(path) for path in paths}
    return tuple(sorted(str(path) for path in found if not found & set(path.parents)))


def with_entrypoint(entrypoint: tuple[str, ...], command: tuple[str, ...]) -> tuple[str, ...]:
    """The rank's command behind the image's entry point, where that is a script which goes on to what follows
    it (`/opt/nvidia/nvidia_entrypoint.sh` sets up CUDA's libraries). One that starts vLLM itself is replaced.
    """
    first = PurePosixPath(entrypoint[0]).name if entrypoint else ""
    is_wrapper = len(entrypoint) == 1 and ("entrypoint" in first or first.endswith(".sh"))
    return (*entrypoint, *command) if is_wrapper else command


def _capabilities(user: str, becomes: int) -> Iterable[str]:
    """Only root's shim needs any: to become somebody else, and to end what it became; the rank has none then.

    A rank that *is* root reads models of other users, as it would without a container. Of the two
    capabilities for that it gets the one that reaches no further than its mounts: DAC_READ_SEARCH opens any
    file of the node by its handle.
    """
    if not user.startswith("0:"):
        return ()
    return ("DAC_OVERRIDE",) if becomes == 0 else ("KILL", "SETGID", "SETUID")


def mounted(mount: Mount) -> dict[str, Any]:
    """For a container's `Mounts`."""
    return {
        "Type": "bind",
        "Source": mount.path,
        "Target": mount.path,
        "ReadOnly": not mount.writable,
        "BindOptions": {"Propagation": "rprivate"},
    }


def _parsed(name: str) -> RankName:
    rank = parse_rank_name(name)
    if rank is None:
        raise UsageError(f"{name} is no rank's name")
    return rank
