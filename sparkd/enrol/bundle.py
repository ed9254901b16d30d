"""What is copied to a node: one zip with our code, the agent's wheels unpacked, a start script, a manifest.

Its name holds its version and a digest of everything in it, so a folder on a node never changes once it is
there: what runs from an old one goes on, and what is sent again is recognised.
"""

import hashlib
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import sparkd
from sparkd.engine.plugin import plugin_folder
from sparkd.errors import EnrolmentFailed

SHARED: Final = (
    "__init__.py",
    "errors.py",
    "clock.py",
    "failpoints.py",
    "notify.py",
    "records",
    "engine",
    "detect",
    "py.typed",
)
"""Of `sparkd` itself, what the agent may import (`tests/unit/test_imports.py`)."""
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Bundle:
    folder: str
    """Its name below the place for bundles of its kind."""
    files: int
    size: int
    """Bytes, unpacked."""
    blob: bytes


def agent_bundle(wheels: Sequence[Path], python: str) -> Bundle:
    """For a node. Raises as `build_bundle`."""
    return build_bundle(own_code(), wheels, python, "sparkd-agent", "sparkd_agent.__main__")


def build_bundle(
    own: Mapping[str, bytes], wheels: Sequence[Path], python: str, program: str, module: str
) -> Bundle:
    """`own`: code by its path below `lib`; `python`: the interpreter there, an absolute path; `program`: the
    script in `bin`, which calls `main()` of `module`.

    Raises EnrolmentFailed for a path that cannot stand in a script's first line.
    """
    if not python.startswith("/") or any(character.isspace() for character in python):
        raise EnrolmentFailed(f"{python!r} cannot be an interpreter's path")
    files = {f"lib/{name}": body for name, body in own.items()}
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            files |= {f"lib/{n}": archive.read(n) for n in archive.namelist() if not n.endswith("/")}
    files[f"bin/{program}"] = _START.format(python=python, module=module).encode()
    digests = {name: hashlib.sha256(body).hexdigest() for name, body in sorted(files.items())}
    digest = hashlib.sha256(json.dumps(digests).encode()).hexdigest()[:12]
    manifest = {"version": sparkd.__version__, "wheels": [wheel.name for wheel in wheels], "files": digests}
    size = sum(len(body) for body in files.values())
    blob = _zip({**files, "manifest.json": json.dumps(manifest).encode()})
    return Bundle(f"{sparkd.__version__}-{digest}", len(files), size, blob)


def own_code() -> dict[str, bytes]:
    """The files of our packages that a node needs: path below `lib` -> content."""
    shared = dict(read_package(Path(sparkd.__file__).parent, SHARED))
    return {**shared, **agent_files(), **plugin_files()}


def agent_files() -> dict[str, bytes]:
    """The agent's own package. It is found without importing it: it is a program of its own."""
    spec = importlib.util.find_spec("sparkd_agent")
    files: dict[str, bytes] = {}
    for place in map(Path, (spec and spec.submodule_search_locations) or ()):
        files |= dict(read_package(place, [entry.name for entry in place.iterdir()]))
    return files


def plugin_files() -> dict[str, bytes]:
    """The plug-in for vLLM, where an installed sparkd has it, also from a checkout."""
    folder = plugin_folder()
    names = [entry.name for entry in folder.iterdir() if entry.name.startswith("sparkd_mods")]
    found = dict(file for name in names for file in read_package(folder / name, ["."]))
    return {f"sparkd/engine/plugin_folder/{name}": body for name, body in found.items()}


_START = """#!{python} -IS
# With the libraries beside it, and nobody else's.
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "lib"))
from {module} import main

sys.exit(main())
"""


def read_package(package: Path, names: Iterable[str]) -> Iterable[tuple[str, bytes]]:
    """The files of these names below a package's folder, by their path from the folder that it lies in."""
    for name in names:
        place = package / name
        for file in sorted(place.rglob("*")) if place.is_dir() else (place,):
            if file.is_file() and file.suffix != ".pyc":
                yield f"{package.name}/{file.relative_to(package)}", file.read_bytes()


def _zip(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in sorted(files.items()):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.external_attr = (0o755 if name.startswith("bin/") else 0o644) << 16
            archive.writestr(info, body, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
