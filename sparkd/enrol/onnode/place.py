"""Where things lie on a node, and how they are read, written and run."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

Answer = dict[str, Any]


class Here:
    """Everything lies below `root`; a test has a folder of its own, and a stand-in for systemctl."""

    def __init__(self) -> None:
        self.root = Path("/")
        self.systemctl = "systemctl"


HERE = Here()
UNIT = "sparkd-agent.service"
UNITS = (UNIT, "sparkd-coordinator.service")
AGENT = "opt/sparkd"
COMMAND = "usr/local/bin/sparkd-agent"
"""So that people on the node find it."""
BASES = (AGENT, "opt/sparkd-coordinator")
"""Where bundles are unpacked: for a node, for the coordinator's machine."""
CONFIG = "etc/sparkd/agent.toml"
STATE = "var/lib/sparkd/agent"
KEY = STATE + "/tls/node.key"
CERTIFICATE = STATE + "/tls/node.crt"
AUTHORITY = STATE + "/tls/ca.crt"
IDENTITY = STATE + "/node-id"
COMMAND_S = 60


class Refusal(Exception):
    """A person can do something about it; its text says what."""


def text_of(name: str) -> str | None:
    try:
        return (HERE.root / name).read_text()
    except OSError:
        return None


def is_whole(folder: Path) -> bool:
    """Every file of the manifest is there, as it was sent."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        return all(
            hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
            for name, digest in manifest["files"].items()
        )
    except (OSError, ValueError, KeyError):
        return False


def systemctl_says(*words: str) -> str:
    return output([HERE.systemctl, *words]).strip()


def output(argv: list[str], timeout_s: int = COMMAND_S) -> str:
    """What a program prints; nothing if it is not there. Its exit status is no matter."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace")


def checked(argv: list[str]) -> str:
    """What a program prints. Raises Refusal with its complaint when it fails."""
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=COMMAND_S,
        check=False,
    )
    if done.returncode:
        complaint = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
        raise Refusal(f"{' '.join(argv[:2])} failed: {complaint}")
    return done.stdout.decode(errors="replace")


def write_whole(place: Path, text: str, mode: int) -> None:
    """Whole or not at all, durable; its folder is made if it is absent. The agent's state is root's alone."""
    state = HERE.root / STATE
    if state in place.parents and not state.is_dir():
        state.mkdir(mode=0o700, parents=True)
        state.parent.chmod(0o755)
    place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    fresh = place.with_name(".incoming-" + place.name)
    descriptor = os.open(str(fresh), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "w") as stream:
        os.fchmod(stream.fileno(), mode)
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    fresh.replace(place)
    sync(place.parent)


def sync(place: Path) -> None:
    descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
