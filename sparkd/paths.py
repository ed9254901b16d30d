"""Where sparkd keeps its files on this machine (design §11 "Files"; the XDG base directories)."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Paths:
    config: tuple[Path, ...]
    """Folders of `*.toml`, the later one wins."""
    state: Path
    local: Path
    """The local set of this user: always below the user's own state, also for root."""
    runtime: tuple[Path, ...]
    """For sockets, the best first; a unix socket's path holds 107 bytes, so the last one is short."""


def find_paths(env: Mapping[str, str] | None = None, uid: int | None = None) -> Paths:
    """The folders of the user `uid` with the environment `env`; nothing is created.

    `SPARKD_CONFIG_DIR` and `SPARKD_STATE_DIR` win over everything else.
    """
    env = os.environ if env is None else env
    uid = os.getuid() if uid is None else uid
    user_state = _xdg(env, "XDG_STATE_HOME", ".local/state")
    config: tuple[Path, ...] = (Path("/etc/sparkd"),)
    state = Path("/var/lib/sparkd")
    if uid != 0:
        config = (*config, _xdg(env, "XDG_CONFIG_HOME", ".config") / "sparkd")
        state = user_state / "sparkd"
    if own := env.get("SPARKD_CONFIG_DIR"):
        config = (Path(own).absolute(),)
    if own := env.get("SPARKD_STATE_DIR"):
        state = Path(own).absolute()
    runtime: tuple[Path, ...] = (Path(f"/tmp/sparkd-{uid}"),)  # noqa: S108  its user makes it 0700 and checks
    if _is_absolute(given := env.get("XDG_RUNTIME_DIR", "")):
        runtime = (Path(given) / "sparkd", *runtime)
    return Paths(config=config, state=state, local=user_state / "sparkd" / "local", runtime=runtime)


def _xdg(env: Mapping[str, str], name: str, below_home: str) -> Path:
    """The specification: a relative value counts as unset."""
    value = env.get(name, "")
    if _is_absolute(value):
        return Path(value)
    return Path(env.get("HOME") or "/root") / below_home


def _is_absolute(value: str) -> bool:
    return value.startswith("/")
