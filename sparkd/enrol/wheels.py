"""The wheels of an agent for one kind of node: named and hashed in `agent.lock`, kept in folders here.

A node needs neither pip nor internet. This machine fills its cache with `pip download` when a wheel is
missing; without internet here as well, a person puts the files into a folder (`--wheels`).
"""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

from sparkd.records.defaults import DEFAULTS

LOCK: Final = "agent.lock"
MACHINES: Final = ("aarch64", "x86_64")
PYTHONS: Final = ((3, 11), (3, 12), (3, 13), (3, 14))
_OLD_NAMES: Final = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
_PLATFORM = re.compile(r"manylinux_(\d+)_(\d+)_(.+)")


@dataclass(frozen=True, slots=True)
class Kind:
    """What decides which wheel fits: `libc` is glibc's version."""

    python: tuple[int, int]
    machine: str
    libc: tuple[int, int]

    def __str__(self) -> str:
        return f"Python {self.python[0]}.{self.python[1]} on {self.machine}"


@dataclass(frozen=True, slots=True)
class Locked:
    name: str
    version: str
    hashes: frozenset[str]
    """SHA-256, hexadecimal, of every wheel that may be used."""


@dataclass(frozen=True, slots=True)
class Choice:
    wheels: tuple[Path, ...]
    missing: tuple[str, ...]
    """In words, one for each distribution without a wheel."""


def lock_file() -> Path:
    return Path(str(resources.files("sparkd.enrol").joinpath(LOCK)))


def read_lock(text: str) -> tuple[Locked, ...]:
    """Of a requirements file with hashes, as pip reads it too."""
    joined = text.replace("\\\n", " ")
    found = []
    for line in joined.splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        name, _, version = words[0].partition("==")
        hashes = frozenset(word.removeprefix("--hash=sha256:") for word in words[1:])
        found.append(Locked(name, version, hashes))
    return tuple(found)


def choose(lock: Sequence[Locked], folders: Sequence[Path], kind: Kind) -> Choice:
    """One wheel for each locked distribution; a file with another hash than the lock's is none."""
    wheels, missing = [], []
    for locked in lock:
        fitting = [
            file
            for folder in folders
            for file in sorted(folder.glob("*.whl"))
            if _is_of(file.name, locked) and fits(file.name, kind)
        ]
        good = [file for file in fitting if _digest(file) in locked.hashes]
        if good:
            wheels.append(good[0])
            continue
        spoilt = f"; {fitting[0]} is another file than the lock names" if fitting else ""
        missing.append(f"{locked.name} {locked.version} for {kind}{spoilt}")
    return Choice(tuple(wheels), tuple(missing))


def fits(file_name: str, kind: Kind) -> bool:
    """Whether a wheel can be used there, by the tags in its name (PEP 425, PEP 600)."""
    parts = file_name.removesuffix(".whl").split("-")
    if len(parts) < 5:
        return False
    pythons, abis, platforms = (part.split(".") for part in parts[-3:])
    own = f"cp{kind.python[0]}{kind.python[1]}"
    if abis == ["abi3"]:
        python = any(_at_least(tag, kind.python) for tag in pythons)
    elif abis == ["none"]:
        python = "py3" in pythons or own in pythons
    else:
        python = own in pythons and own in abis
    return python and any(_platform_fits(tag, kind) for tag in platforms)


def download(lock: Path, kind: Kind, cache: Path) -> str | None:
    """Fill the cache for a kind of node; gives the reason when that failed."""
    pip = _find_pip()
    if pip is None:
        return f"there is no pip for {sys.executable}"
    words = ["download", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps"]
    words += ["--only-binary=:all:", "--require-hashes", "-r", str(lock), "--dest", str(cache)]
    words += ["--implementation", "cp", "--python-version", f"{kind.python[0]}.{kind.python[1]}"]
    for minor in sorted({17, 28, kind.libc[1]}):
        if (2, minor) <= kind.libc:
            words += ["--platform", f"manylinux_2_{minor}_{kind.machine}"]
    words += ["--platform", f"manylinux2014_{kind.machine}"]
    cache.mkdir(mode=0o755, parents=True, exist_ok=True)
    try:
        done = subprocess.run(
            [*pip, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEFAULTS.wheel_download_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"pip did not end within {DEFAULTS.wheel_download_s:g} s"
    return _last_error(done.stderr) if done.returncode else None


def by_hand(lock: Path, kind: Kind) -> str:
    """What a person runs on any machine with internet."""
    return (
        f"python3 -m pip download --no-deps --only-binary=:all: --require-hashes -r {lock} --dest wheels "
        f"--implementation cp --python-version {kind.python[0]}.{kind.python[1]} "
        f"--platform manylinux_2_17_{kind.machine} --platform manylinux2014_{kind.machine}"
    )


def _find_pip() -> list[str] | None:
    """Our own, the one that Python carries for new environments, uv's, or the system's.

    A tool that `uv` installed has no pip, and on Ubuntu Python carries none; then uv itself is near: on the
    search path, or, under sudo, beside the program that was called.
    """
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    if importlib.util.find_spec("ensurepip"):
        bundled = sorted(Path(str(resources.files("ensurepip"))).glob("_bundled/pip-*.whl"))
        if bundled:
            return [sys.executable, os.fspath(bundled[-1] / "pip")]
    beside = os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.argv[0]).absolute().parent)])
    if uv := shutil.which("uv", path=beside):
        return [uv, "tool", "run", "--quiet", "pip"]
    if Path("/usr/lib/python3/dist-packages/pip").is_dir():
        return ["/usr/bin/python3", "-m", "pip"]
    return None


def _last_error(stderr: str) -> str:
    errors = [line for line in stderr.splitlines() if line.startswith("ERROR")]
    return (errors or stderr.splitlines() or ["pip failed without a word"])[-1]


def _is_of(file_name: str, locked: Locked) -> bool:
    name, _, rest = file_name.partition("-")
    return re.sub(r"[-_.]+", "-", name).lower() == locked.name and rest.startswith(f"{locked.version}-")


def _at_least(tag: str, python: tuple[int, int]) -> bool:
    match = re.fullmatch(r"cp(\d)(\d+)", tag)
    return match is not None and (int(match[1]), int(match[2])) <= python


def _platform_fits(tag: str, kind: Kind) -> bool:
    if tag == "any":
        return True
    if match := _PLATFORM.fullmatch(tag):
        return match[3] == kind.machine and (int(match[1]), int(match[2])) <= kind.libc
    name, _, machine = tag.partition("_")
    return machine == kind.machine and name in _OLD_NAMES and _OLD_NAMES[name] <= kind.libc


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
