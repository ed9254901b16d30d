"""Files of profiles on this node: put where ranks can read them, before a rank that needs them starts."""

import base64
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sparkd.records.defaults import DEFAULTS
from sparkd.records.intent import files_folder
from sparkd_agent.account import Account

FOR_OTHERS: Final = Path("/run/sparkd-files")
"""Where a rank of another user can read them: the agent's own folder is closed to everybody else."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def files_root(state: Path, account: Account | None) -> Path:
    """Where this agent puts files of profiles. `account` is whom ranks run as; None: the agent's own user."""
    return state / "files" if account is None else FOR_OTHERS


def place_files(root: Path, files: Mapping[str, str]) -> None:
    """Make the folder that plans name for this content, whole and read-only; remove those of other contents.

    `files` is base64 by name. No rank may run meanwhile. Raises OSError, or ValueError for what no
    coordinator of ours sends.
    """
    if not files:
        return
    import shutil  # noqa: PLC0415 - half a MiB with its compressors, for the few profiles that have files

    contents = {name: base64.b64decode(content, validate=True) for name, content in files.items()}
    if not all(_NAME.fullmatch(name) for name in contents):
        raise ValueError(f"not the names of files: {', '.join(contents)}")
    if sum(map(len, contents.values())) > DEFAULTS.files_bytes:
        raise ValueError(f"more than {DEFAULTS.files_bytes} bytes of files")
    root.mkdir(mode=0o755, parents=True, exist_ok=True)
    root.chmod(0o755)  # whatever the agent's umask is
    for old in root.iterdir():
        shutil.rmtree(old)
    folder = Path(files_folder(str(root), files))
    fresh = root / f".{folder.name}"
    fresh.mkdir(mode=0o755)
    for name, content in contents.items():
        file = fresh / name
        file.write_bytes(content)
        file.chmod(0o444)
    fresh.chmod(0o755)
    fresh.rename(folder)
