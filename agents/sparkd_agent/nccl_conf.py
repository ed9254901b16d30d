"""What NCCL reads by itself on this node: `~/.nccl.conf` of the ranks' user, then `/etc/nccl.conf`."""

import pwd
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from sparkd.records.fabric import NcclSetting
from sparkd_agent.config import AgentConfig

_READ_MOST: Final = 64 * 1024
_VARIABLE: Final = "NCCL_CONF_FILE"
"""In a rank's environment: instead of the one at home."""


def nccl_files(config: AgentConfig) -> tuple[Path, ...]:
    """In the order in which NCCL reads them; what an earlier one sets a later one does not change."""
    own = config.rank_env.get(_VARIABLE) or f"{_home(config.rank_user)}/.nccl.conf"
    return (Path(own), Path("/etc/nccl.conf"))


def _home(user: str | None) -> str:
    try:
        return str(Path.home()) if user is None else pwd.getpwnam(user).pw_dir
    except (KeyError, RuntimeError):
        return "/nonexistent"


def nccl_settings(files: Iterable[Path], root: Path = Path("/")) -> tuple[NcclSetting, ...]:
    """Lines `NAME=VALUE`; what is no such line NCCL passes over, and a file that is not there too."""
    found: dict[str, NcclSetting] = {}
    for file in files:
        try:
            with (root / str(file).lstrip("/")).open("rb") as opened:
                text = opened.read(_READ_MOST).decode(errors="replace")
        except OSError:
            continue
        for line in text.splitlines():
            name, equals, value = line.strip().partition("=")
            if equals and name.strip() and not name.startswith("#"):
                found.setdefault(name.strip(), NcclSetting(name.strip(), value.strip(), str(file)))
    return tuple(found.values())
