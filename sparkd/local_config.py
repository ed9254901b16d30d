"""What a local set is made of on disk: engine, model roots, tokens and the agents' configuration."""

import hashlib
import json
import os
import secrets
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkd.errors import LocalSetFailed, UsageError
from sparkd.local_facts import engine_python, local_engine, local_model_roots
from sparkd.paths import Paths
from sparkd.private_file import write_private
from sparkd.toml_text import toml_text

SOCKET_PATH_BYTES = 107
"""unix(7): `sun_path` has 108 with its final zero."""


@dataclass(frozen=True, slots=True)
class Machinery:
    """What the agents of a local set may use. Absolute paths."""

    python: str
    model_roots: tuple[str, ...]
    docker: str | None = None
    """The socket of a Docker engine that is not the usual one (`DOCKER_HOST`)."""


def find_machinery(env: Mapping[str, str], cwd: Path) -> Machinery:
    """The engine from `SPARKD_ENGINE` (a python or a venv folder) or `./.venv-vllm`, models from
    `SPARKD_MODELS` or `./.models`. Raises UsageError when there is no such interpreter.
    """
    place = local_engine(env, cwd)
    python = engine_python(place)
    if not (python.is_file() and os.access(python, os.X_OK)):
        named = "SPARKD_ENGINE" if env.get("SPARKD_ENGINE") else "SPARKD_ENGINE is not set, and"
        raise UsageError(
            f"no engine for local mode: {named} {place} is no python and no venv folder; run `make vllm` "
            "here for ./.venv-vllm, or set SPARKD_ENGINE to a venv with vLLM"
        )
    roots = tuple(str(root) for root in local_model_roots(env, cwd))
    scheme, _, socket = env.get("DOCKER_HOST", "").partition("://")
    return Machinery(str(python), roots, socket if scheme == "unix" and socket else None)


def agent_name(i: int) -> str:
    return f"local-{i}"


def agent_folder(paths: Paths, i: int) -> Path:
    return paths.local / "agents" / str(i)


def agent_files(paths: Paths, i: int) -> Path:
    """Where that agent puts files of profiles."""
    return agent_folder(paths, i) / "state" / "files"


def written_machinery(paths: Paths) -> Machinery | None:
    """What the first agent was last told to use."""
    config = _read_toml(agent_folder(paths, 1) / "agent.toml")
    try:
        docker = config.get("docker", {}).get("socket")
        return Machinery(config["engine"]["default"]["python"], tuple(config["models"]["roots"]), docker)
    except (KeyError, TypeError):
        return None


def write_token(paths: Paths) -> Path:
    """The set's shared token, minted once; readable by its user alone."""
    file = paths.local / "token"
    if not file.exists():
        write_private(file, secrets.token_urlsafe(32) + "\n")
    return file


def write_holder(paths: Paths, n: int) -> str:
    """Holder and enrolled nodes beside the coordinator's database, the holder minted once; returns it."""
    file = paths.local / "coordinator" / "holder.json"
    try:
        holder = str(json.loads(file.read_text())["holder"])
    except (FileNotFoundError, ValueError, KeyError):
        holder = secrets.token_hex(8)
    nodes = [{"id": _node_id(paths, i), "name": agent_name(i)} for i in range(1, n + 1)]
    write_private(file, json.dumps({"holder": holder, "nodes": nodes}, indent=2) + "\n")
    return holder


def write_agent_config(paths: Paths, i: int, agents_url: str, holder: str, machinery: Machinery) -> Path:
    """`agent.toml` of the i-th agent, from 1; its node id is kept over all later writes."""
    folder = agent_folder(paths, i)
    sections: dict[str, dict[str, object]] = {
        "node": {
            "id": _node_id(paths, i),
            "name": agent_name(i),
            "address": "127.0.0.1",
            "fabric_address": f"127.0.0.{i}",
            "fabric_interface": "lo",
            "local": True,
        },
        "coordinator": {
            "urls": [agents_url],
            "token_file": str(paths.local / "token"),
            "holder": holder,
        },
        "engine": {"default": {"python": machinery.python}},
        "models": {"roots": list(machinery.model_roots)},
        "state": {"dir": str(folder / "state"), "socket": str(_socket(paths, i))},
    }
    if machinery.docker is not None:
        sections["docker"] = {"socket": machinery.docker}
    file = folder / "agent.toml"
    write_private(file, toml_text(sections))
    return file


def _node_id(paths: Paths, i: int) -> str:
    """Minted once; the holder's list and the agent's own configuration both hold it."""
    file = agent_folder(paths, i) / "id"
    if not file.exists():
        write_private(file, secrets.token_hex(8) + "\n")
    return file.read_text().strip()


def _socket(paths: Paths, i: int) -> Path:
    """Named after the set, because sets with different state folders share the runtime folder."""
    name = f"{hashlib.sha256(os.fsencode(paths.local)).hexdigest()[:8]}-{i}.sock"
    for folder in paths.runtime:
        if len(os.fsencode(folder / name)) <= SOCKET_PATH_BYTES and _is_ours(folder):
            return folder / name
    raise LocalSetFailed(
        f"no folder for the agents' sockets: {' and '.join(map(str, paths.runtime))} must belong to you "
        "alone (mode 0700) and be short; set XDG_RUNTIME_DIR to such a folder"
    )


def _is_ours(folder: Path) -> bool:
    """Made if absent. In a shared /tmp somebody else may have made it first."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, tomllib.TOMLDecodeError):
        return {}
