"""Our own program as files: sparkd with the distributions that it needs, from the environment that runs it.

The coordinator runs as a user of its own, who cannot read somebody's home, where `uv tool` and pipx install;
and what is upgraded there must not pull the rug from under a running coordinator. So `sparkd init` copies.
"""

import os
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

import sparkd
from sparkd.enrol.bundle import agent_files, plugin_files, read_package
from sparkd.errors import EnrolmentFailed
from sparkd.profile.lookup import builtin_profiles
from sparkd.unit_files import COORDINATOR, unit_file

HIDDEN: Final = ("/home/", "/root/", "/run/user/", "/tmp/", "/var/tmp/")  # noqa: S108  named, not used
"""What the unit does not let the coordinator see."""
_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")


def program_files() -> dict[str, bytes]:
    """Path below `lib` -> content. Raises EnrolmentFailed when `sparkd[enrol]` is not installed."""
    files: dict[str, bytes] = {}
    for name in sorted(_needed("sparkd", ("enrol",)) - {"sparkd"}):
        files |= dict(_distribution(name))
    for distribution in ("cryptography", "paramiko"):
        if not any(name.startswith(f"{distribution}/") for name in files):
            raise EnrolmentFailed(f"{distribution} is not installed: `uv tool install 'sparkd[enrol]'`")
    package = Path(sparkd.__file__).parent
    files |= dict(read_package(package, [entry.name for entry in package.iterdir()]))
    files |= {**agent_files(), **plugin_files()}
    # In a checkout these two lie beside the package.
    for folder, below in (
        (builtin_profiles(), "profile/builtin"),
        (unit_file(COORDINATOR).parent, "systemd"),
    ):
        files |= {
            f"sparkd/{below}/{file.name}": file.read_bytes() for file in folder.iterdir() if file.is_file()
        }
    return files


def visible_python(executable: str = sys.executable, prefixes: tuple[str, ...] = HIDDEN) -> str:
    """An interpreter of our own version that everybody may run. Raises EnrolmentFailed when there is none."""
    base = os.path.realpath(executable)
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    candidates = [base, f"/usr/bin/python{version}", f"/usr/local/bin/python{version}"]
    for candidate in candidates:
        place = Path(candidate)
        if place.exists() and not os.path.realpath(candidate).startswith(prefixes):
            return candidate
    raise EnrolmentFailed(
        f"the coordinator runs as a user of its own, who cannot run {base}, and there is no "
        f"/usr/bin/python{version}: install sparkd with the system's Python, "
        "`uv tool install --python /usr/bin/python3 'sparkd[enrol]'`"
    )


def _needed(name: str, extras: tuple[str, ...]) -> set[str]:
    """What is installed of all that a distribution asks for. Markers of systems and versions need no look:
    what they leave out is not installed.
    """
    found: set[str] = set()
    todo = [(name, extras)]
    while todo:
        name, extras = todo.pop()
        try:
            wanted = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in found and not extras:
            continue
        found.add(key)
        for text in wanted:
            extra = _EXTRA.search(text)
            match = _NAME.match(text)
            if match and (extra is None or extra[1] in extras):
                below = tuple(word.strip() for word in (match[2] or "").split(",") if word.strip())
                if re.sub(r"[-_.]+", "-", match[1]).lower() not in found or below:
                    todo.append((match[1], below))
    return found


def _distribution(name: str) -> Iterator[tuple[str, bytes]]:
    for file in metadata.files(name) or ():
        if ".." in file.parts or file.suffix in {".pyc", ".pth"} or file.parts[0] in {"bin", "share"}:
            continue
        place = Path(str(file.locate()))
        if place.is_file():
            yield str(file), place.read_bytes()
