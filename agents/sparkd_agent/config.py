"""The agent's own configuration: `agent.toml`. It names the only interpreters that this node starts."""

import ipaddress
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sparkd.engine.collective import PROBE_MODULE
from sparkd.errors import UsageError
from sparkd.records.rank import RankKind

_LOOPBACK = re.compile(r"127(\.\d{1,3}){3}|::1|localhost")
ENGINE_MODULE = ("-m", "vllm.entrypoints.cli.main")
"""What an engine's python is started with: the same as the `vllm` script, which may lie elsewhere."""
MODULES: dict[RankKind, tuple[str, ...]] = {"serve": ENGINE_MODULE, "probe": ("-m", PROBE_MODULE)}
"""The same by the kind of the rank. Nothing that a document says is executed."""
RUNTIMES = ("systemd", "process", "docker")
"""The better one first; `docker` runs what was asked for with an image, and nothing else."""
PRESENT = "present"
"""Allows every image that somebody put on the node."""
DOCKER_SOCKET = "/run/docker.sock"


@dataclass(frozen=True, slots=True)
class EngineConfig:
    python: str

    @property
    def command(self) -> tuple[str, ...]:
        return self.command_of("serve")

    def command_of(self, kind: RankKind) -> tuple[str, ...]:
        return (self.python, *MODULES[kind])


@dataclass(frozen=True, slots=True)
class DockerConfig:
    socket: str = DOCKER_SOCKET
    images: str | tuple[str, ...] = PRESENT
    """`present`, or the names of images that ranks may be of. Nothing is ever pulled."""


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """Read once at the start. Paths are absolute."""

    node_id: str
    name: str
    address: str
    fabric_address: str
    fabric_interface: str | None
    local: bool
    urls: tuple[str, ...]
    """Tried in turn; https, or http on this very machine."""
    holder: str
    engines: dict[str, EngineConfig]
    model_roots: tuple[str, ...]
    state: Path
    token_file: Path | None = None
    """With http only."""
    identity: Path | None = None
    """With https: the folder of ca.crt, node.crt and node.key; the agent renews node.crt there."""
    socket: Path | None = None
    rank_env: dict[str, str] = field(default_factory=dict)
    rank_user: str | None = None
    """Whom ranks run as if the agent is root. None: nobody, so none is started (a local set apart)."""
    rank_group: str | None = None
    """None: the user's own."""
    rank_runtime: str | None = None
    """The only runtime to be used; None: whichever the node has."""
    docker: DockerConfig = field(default_factory=DockerConfig)


_SECTIONS = {
    "node": {"id", "name", "address", "fabric_address", "fabric_interface", "local"},
    "coordinator": {"urls", "token_file", "identity", "holder"},
    "engine": None,
    "models": {"roots"},
    "state": {"dir", "socket"},
    "rank": {"env", "user", "group", "runtime"},
    "docker": {"socket", "images"},
}


def read_config(path: Path) -> AgentConfig:
    """Raises UsageError naming the file and the key of the first thing that is wrong."""
    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: is not TOML: {error}") from error
    _check_keys(path, document)
    node = _section(path, document, "node")
    coordinator = _section(path, document, "coordinator")
    state = _section(path, document, "state")
    rank = document.get("rank", {})
    address = _text(path, node, "node", "address")
    socket = state.get("socket")
    return AgentConfig(
        node_id=_text(path, node, "node", "id"),
        name=_text(path, node, "node", "name"),
        address=address,
        fabric_address=_fabric_address(path, node) or address,
        fabric_interface=node.get("fabric_interface"),
        local=bool(node.get("local", False)),
        urls=_texts(path, coordinator, "coordinator", "urls"),
        **_credentials(path, coordinator),
        holder=_text(path, coordinator, "coordinator", "holder"),
        engines=_engines(path, document.get("engine", {})),
        model_roots=_texts(path, document.get("models", {}), "models", "roots", required=False),
        state=Path(_text(path, state, "state", "dir")),
        socket=Path(socket) if socket else None,
        rank_env={str(k): str(v) for k, v in rank.get("env", {}).items()},
        rank_user=_optional(path, rank, "rank", "user"),
        rank_group=_optional(path, rank, "rank", "group"),
        rank_runtime=_runtime(path, rank),
        docker=_docker(path, document.get("docker", {})),
    )


def _credentials(path: Path, coordinator: dict[str, Any]) -> dict[str, Path]:
    """A token over http, and only to this very machine; a certificate over https."""
    urls = [urlsplit(url) for url in _texts(path, coordinator, "coordinator", "urls")]
    schemes = {url.scheme for url in urls}
    if schemes == {"https"}:
        return {"identity": Path(_text(path, coordinator, "coordinator", "identity"))}
    if schemes != {"http"}:
        raise UsageError(f"{path}: coordinator.urls: all http:// or all https://")
    for url in urls:
        if not _LOOPBACK.fullmatch(url.hostname or ""):
            raise UsageError(
                f"{path}: coordinator.urls: {url.geturl()} would send the token over a network: use https"
            )
    return {"token_file": Path(_text(path, coordinator, "coordinator", "token_file"))}


def _check_keys(path: Path, document: dict[str, Any]) -> None:
    for name, body in document.items():
        if name not in _SECTIONS:
            raise UsageError(f"{path}: [{name}]: no such section (known: {', '.join(_SECTIONS)})")
        known = _SECTIONS[name]
        if known is not None and isinstance(body, dict):
            for key in body:
                if key not in known:
                    raise UsageError(f"{path}: {name}.{key}: no such key (known: {', '.join(sorted(known))})")


def _section(path: Path, document: dict[str, Any], name: str) -> dict[str, Any]:
    body = document.get(name)
    if not isinstance(body, dict):
        raise UsageError(f"{path}: [{name}] is missing")
    return body


def _text(path: Path, section: dict[str, Any], name: str, key: str) -> str:
    value = section.get(key)
    if not isinstance(value, str) or not value:
        raise UsageError(f"{path}: {name}.{key}: a text is needed")
    return value


def _optional(path: Path, section: dict[str, Any], name: str, key: str) -> str | None:
    return _text(path, section, name, key) if key in section else None


def _fabric_address(path: Path, node: dict[str, Any]) -> str | None:
    """An address and nothing else: ranks bind to it, and it is compared with those of the interfaces."""
    given = node.get("fabric_address")
    if not given or given == node.get("address"):
        return None
    try:
        return str(ipaddress.ip_address(str(given)))
    except ValueError as error:
        raise UsageError(
            f"{path}: node.fabric_address: an IP address is needed, without a prefix, not {given!r}"
        ) from error


def _runtime(path: Path, rank: dict[str, Any]) -> str | None:
    runtime = _optional(path, rank, "rank", "runtime")
    if runtime not in {None, *RUNTIMES}:
        raise UsageError(f"{path}: rank.runtime: no such runtime {runtime!r} (known: {', '.join(RUNTIMES)})")
    return runtime


def _docker(path: Path, section: dict[str, Any]) -> DockerConfig:
    images = section.get("images", PRESENT)
    return DockerConfig(
        socket=_optional(path, section, "docker", "socket") or DOCKER_SOCKET,
        images=PRESENT if images == PRESENT else _texts(path, section, "docker", "images"),
    )


def _texts(
    path: Path, section: dict[str, Any], name: str, key: str, *, required: bool = True
) -> tuple[str, ...]:
    value = section.get(key, [])
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value) or (required and not value):
        raise UsageError(f"{path}: {name}.{key}: a list of texts is needed")
    return tuple(value)


def _engines(path: Path, section: Any) -> dict[str, EngineConfig]:
    engines: dict[str, EngineConfig] = {}
    for name, body in section.items():
        if not isinstance(body, dict) or set(body) - {"python"}:
            raise UsageError(f"{path}: engine.{name}: only `python` may stand here")
        python = _text(path, body, f"engine.{name}", "python")
        if not Path(python).is_absolute():
            raise UsageError(f"{path}: engine.{name}.python: an absolute path is needed")
        engines[name] = EngineConfig(python)
    return engines
