"""What makes a coordinator this coordinator: authority, list of nodes, tokens, API keys, in one private file.

The database is not in it: a coordinator without one fills it from what the agents remember, and an old one
would know less than they do.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from sparkd.enrol.authority import load_authority
from sparkd.enrol.roster import Roster, read_roster
from sparkd.errors import Conflict, NotFound, StateCorrupt, UsageError
from sparkd.private_file import write_private

FORMAT: Final = 1
FILES: Final = ("ca.key", "ca.crt", "holder.json", "tokens.json")
_KEY = re.compile(r"keys/[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Backup:
    format: int
    holder: str
    files: dict[str, str]
    """By name below the state folder."""


def write_backup(folder: Path, file: Path) -> Roster:
    """Raises NotFound where there is no authority, StateCorrupt for one that cannot be used, Conflict for a
    file that exists.
    """
    load_authority(folder)
    roster = read_roster(folder)
    if file.exists():
        raise Conflict(f"{file} exists; a backup replaces nothing")
    keys = [f"keys/{key.name}" for key in (folder / "keys").glob("*")]
    names = [*FILES, *(name for name in keys if _KEY.fullmatch(name))]
    files = {name: (folder / name).read_text(encoding="utf-8") for name in names if (folder / name).is_file()}
    body = msgspec.json.format(msgspec.json.encode(Backup(FORMAT, roster.holder, files))).decode()
    write_private(file, body + "\n")
    return roster


def restore_backup(file: Path, folder: Path) -> Roster:
    """Onto a machine that is no coordinator's, or this very one's. No coordinator may run on the folder.

    Raises NotFound, UsageError for what is no backup, Conflict when another coordinator's authority is there.
    """
    try:
        backup = msgspec.json.decode(file.read_bytes(), type=Backup)
    except FileNotFoundError as error:
        raise NotFound(f"there is no {file}") from error
    except msgspec.MsgspecError as error:
        raise UsageError(f"{file} is no backup of a coordinator: {error}") from error
    if backup.format != FORMAT:
        raise UsageError(f"{file} has format {backup.format}; this sparkd reads format {FORMAT}")
    strange = [name for name in backup.files if name not in FILES and not _KEY.fullmatch(name)]
    if strange or not {"ca.key", "ca.crt", "holder.json"} <= set(backup.files):
        raise UsageError(f"{file} is no backup of a coordinator: {', '.join(strange) or 'files are missing'}")
    if (folder / "ca.key").exists() and (there := read_roster(folder).holder) != backup.holder:
        raise Conflict(f"{folder} belongs to another coordinator, {there}; this backup is of {backup.holder}")
    # The key last: where it is, the rest is too.
    for name, text in sorted(backup.files.items(), key=lambda item: item[0] == "ca.key"):
        write_private(folder / name, text)
    load_authority(folder)
    roster = read_roster(folder)
    if roster.holder != backup.holder:
        raise StateCorrupt(f"{file} contradicts itself: holder {backup.holder} and {roster.holder}")
    return roster
