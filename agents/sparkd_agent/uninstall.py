"""Taking the agent off its node: what goes, and what stays. Network, users and packages were never ours.

Ranks are not ended here: a gang is ended by `sparkd down`, on all its nodes.
"""

import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sparkd.errors import Conflict
from sparkd_agent.config import AgentConfig
from sparkd_agent.procfs import ProcFs

UNIT: Final = "sparkd-agent.service"
_SYSTEMCTL_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Uninstalled:
    """In words, for people."""

    removed: tuple[str, ...]
    left: tuple[str, ...]


def uninstall(
    config: AgentConfig | None,
    *,
    root: Path = Path("/"),
    systemctl: str = "systemctl",
    force: bool = False,
    procfs: ProcFs | None = None,
) -> Uninstalled:
    """Stop and disable the service, remove its files. `config`: None where there is none that can be read.

    Raises Conflict while ranks live here, unless `force`; they are then left running and named. Removing goes
    on after a failure: what could not be removed is among what is left.
    """
    ranks = living_ranks(procfs or ProcFs())
    if ranks and not force:
        raise Conflict(
            f"ranks live on this node: {', '.join(ranks)}; end them with `sparkd down NAME`, or leave them "
            "running with --force"
        )
    removed: list[str] = []
    left = [f"rank {rank}, running; nobody watches it any more" for rank in ranks]
    complaints = [(verb, _run(systemctl, verb, UNIT)) for verb in ("stop", "disable")]
    left += [f"{UNIT}: {verb} failed: {words}" for verb, words in complaints if words]
    state = config.state if config else Path("/var/lib/sparkd/agent")
    for name in (
        f"/etc/systemd/system/{UNIT}",
        "/etc/sparkd/agent.toml",
        # The shims of living ranks write below the rest of it.
        *((f"{state}/tls", f"{state}/node-id") if ranks else (str(state),)),
        *_command(root),
        *_copies(root),
    ):
        place = root / name.lstrip("/")
        if place.exists() or place.is_symlink():
            try:
                _remove(place)
                removed.append(name)
            except OSError as error:
                left.append(f"{name}: {error.strerror or error}")
    _run(systemctl, "daemon-reload")
    for name in ("etc/sparkd", "opt/sparkd", "var/lib/sparkd"):
        # Only if nothing is left in it: a coordinator may live here too.
        with suppress(OSError):
            (root / name).rmdir()
    return Uninstalled(tuple(removed), (*left, *_never_ours(config)))


def living_ranks(procfs: ProcFs) -> tuple[str, ...]:
    """By the environment of processes: this is true also while no agent runs."""
    return tuple(sorted({name for pid in procfs.pids() if (name := procfs.rank_name(pid))}))


def _command(root: Path) -> list[str]:
    """The link on the search path, if it is ours."""
    name = "/usr/local/bin/sparkd-agent"
    place = root / name.lstrip("/")
    return [name] if place.is_symlink() and str(place.readlink()).startswith("/opt/sparkd/") else []


def _copies(root: Path) -> list[str]:
    folder = root / "opt/sparkd"
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    ours = [name for name in names if name == "current" or name.startswith(".incoming-")]
    ours += [name for name in names if (folder / name / "manifest.json").is_file() and name != "current"]
    return [f"/opt/sparkd/{name}" for name in sorted(ours)]


def _remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink()


def _run(systemctl: str, *words: str) -> str:
    """Nothing, or why it failed."""
    try:
        done = subprocess.run(
            [systemctl, *words], capture_output=True, text=True, timeout=_SYSTEMCTL_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    unknown = "not loaded" in done.stderr or "does not exist" in done.stderr
    return done.stderr.strip() if done.returncode and not unknown else ""


def _never_ours(config: AgentConfig | None) -> list[str]:
    if config is None:
        return ["checkpoints, engines and images: never touched"]
    roots = [f"checkpoints in {root}: never touched" for root in config.model_roots]
    return roots + [f"engine {engine.python}: never touched" for engine in config.engines.values()]
