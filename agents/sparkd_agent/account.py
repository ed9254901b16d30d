"""Whom ranks run as, when the agent itself is root."""

import grp
import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from sparkd.errors import UsageError


@dataclass(frozen=True, slots=True)
class Account:
    name: str
    uid: int
    gid: int
    group: str
    groups: tuple[int, ...]
    """All of them: a rank may need `video` or `render` to open the GPU."""
    home: str

    @property
    def working_folder(self) -> str:
        """Where a rank begins. Users of the system often have no home."""
        return self.home if Path(self.home).is_dir() else "/"

    @property
    def environment(self) -> dict[str, str]:
        """What a log-in would set; the agent's own values are root's."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}


def find_account(user: str, group: str | None) -> Account:
    """Raises UsageError for a user or a group that this machine does not know."""
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise UsageError(f"rank.user: this machine knows no user {user!r}") from None
    try:
        chosen = grp.getgrgid(entry.pw_gid) if group is None else grp.getgrnam(group)
    except KeyError:
        raise UsageError(f"rank.group: this machine knows no group {group or entry.pw_gid!r}") from None
    groups = tuple(sorted({chosen.gr_gid, *os.getgrouplist(user, entry.pw_gid)}))
    return Account(user, entry.pw_uid, chosen.gr_gid, chosen.gr_name, groups, entry.pw_dir)
