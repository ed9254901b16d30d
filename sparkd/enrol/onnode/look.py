"""What is there: reads only."""

from __future__ import annotations

import http.client
import json
import os
import platform
import shutil
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from sparkd.enrol.onnode.place import (
    AGENT,
    AUTHORITY,
    CERTIFICATE,
    CONFIG,
    HERE,
    IDENTITY,
    KEY,
    UNIT,
    Answer,
    is_whole,
    output,
    systemctl_says,
    text_of,
)

NEEDED_MODULES = ("asyncio", "ctypes", "sqlite3", "ssl", "tomllib")
LOOK_S = 15
"""For what a machine in trouble may never answer: nvidia-smi hangs with its driver."""
DOCKER_S = 5


def probe(args: Answer, _blob: bytes) -> Answer:
    """Reads only. `args`: `home` of the person who logged in, `urls` [[host, port], …] of the coordinator."""
    home = Path(args["home"])
    return {
        "hostname": socket.gethostname(),
        "system": platform.system(),
        "distribution": _distribution(),
        "kernel": platform.release(),
        "boot": _line(Path("/proc/sys/kernel/random/boot_id")),
        "machine": platform.machine(),
        "libc": list(platform.libc_ver()),
        "python": [*sys.version_info[:3]],
        "python_path": os.path.realpath(sys.executable),
        "missing_modules": [name for name in NEEDED_MODULES if not _can_import(name)],
        "has_systemd": (HERE.root / "run/systemd/system").is_dir(),
        "has_openssl": shutil.which("openssl") is not None,
        # Below a folder of its own nobody needs to be root.
        "is_root": os.geteuid() == 0 or Path("/") != HERE.root,
        "free_bytes": _free_bytes(HERE.root / "opt"),
        "address": _address_towards(args.get("urls", [])),
        "unreachable": _unreachable(args.get("urls", [])),
        "agent": _agent(),
        # Nice to know: none of it may keep a machine from being a node.
        "fabric": _or_nothing(_fabric),
        "gpu": _or_nothing(_gpu),
        "gpu_owners": _or_nothing(_gpu_owners),
        "containers": _or_nothing(_containers),
        "images": _or_nothing(_images),
        "model_roots": _or_nothing(lambda: _model_roots(home)),
        "engines": _or_nothing(lambda: _engines(home)),
    }


def _or_nothing(look: Callable[[], list[Any]]) -> list[Any]:
    try:
        return look()
    except Exception:  # noqa: BLE001  a stranger's answer, a home that even root may not read
        return []


def _distribution() -> str:
    with suppress(OSError):
        for line in (HERE.root / "etc/os-release").read_text().splitlines():
            if line.startswith("PRETTY_NAME="):
                return line.partition("=")[2].strip('"')
    return ""


def _can_import(name: str) -> bool:
    try:
        __import__(name)
    except ImportError:
        return False
    return True


def _free_bytes(place: Path) -> int:
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(str(place)).free


def _address_towards(urls: list[list[Any]]) -> str | None:
    """Our own address on the way to the coordinator. Nothing is sent: UDP only asks for the route."""
    for host, port in urls:
        with suppress(OSError), socket.socket(_family(host), socket.SOCK_DGRAM) as probing:
            probing.connect((host, port))
            return str(probing.getsockname()[0])
    return None


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _unreachable(urls: list[list[Any]]) -> list[str]:
    """The coordinator's addresses that this node cannot connect to, each with the reason."""
    failed = []
    for host, port in urls:
        try:
            socket.create_connection((host, port), timeout=5).close()
        except OSError as error:
            failed.append(f"{host}:{port}: {error.strerror or error}")
    return failed


def _agent() -> Answer:
    """What an earlier enrolment left."""
    found: Answer = {
        "current": None,
        "folders": [],
        "node_id": None,
        "config": None,
        "key": (HERE.root / KEY).is_file(),
        "certificate": text_of(CERTIFICATE),
        "authority": text_of(AUTHORITY),
        "unit": text_of("etc/systemd/system/" + UNIT),
        "active": systemctl_says("is-active", UNIT) == "active",
        "enabled": systemctl_says("is-enabled", UNIT) == "enabled",
    }
    with suppress(OSError):
        found["current"] = (HERE.root / AGENT / "current").readlink().name
    folder = HERE.root / AGENT
    if folder.is_dir():
        found["folders"] = sorted(
            entry.name
            for entry in folder.iterdir()
            if entry.is_dir()
            and not entry.is_symlink()
            and not entry.name.startswith(".")
            and is_whole(entry)
        )
    identity = text_of(IDENTITY)
    found["node_id"] = identity.strip() if identity else None
    text = text_of(CONFIG)
    if text is not None:
        try:
            import tomllib  # noqa: PLC0415  Python 3.11

            found["config"] = tomllib.loads(text)
        except (ImportError, ValueError):
            found["config"] = {}
    return found


def _fabric() -> list[Answer]:
    """RDMA network devices with what the kernel says of them, from sysfs."""
    devices: dict[str, str] = {}
    for rdma in sorted((HERE.root / "sys/class/infiniband").glob("*")):
        for net in sorted((rdma / "device/net").glob("*")):
            devices[net.name] = rdma.name
    found = []
    for name, rdma_name in sorted(devices.items()):
        folder = HERE.root / "sys/class/net" / name
        found.append(
            {
                "interface": name,
                "rdma": rdma_name,
                "up": (_line(folder / "operstate") == "up"),
                "mtu": _number(folder / "mtu"),
                "speed_mbit": _number(folder / "speed"),
                "addresses": _ipv4_of(name),
            }
        )
    return found


def _ipv4_of(interface: str) -> list[str]:
    out = output(["ip", "-j", "-4", "address", "show", "dev", interface])
    try:
        return [info["local"] for entry in json.loads(out) for info in entry.get("addr_info", [])]
    except (ValueError, KeyError):
        return []


def _line(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _number(file: Path) -> int | None:
    text = _line(file)
    return int(text) if text.lstrip("-").isdigit() else None


def _gpu() -> list[str]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return output(query, LOOK_S).splitlines()


def _gpu_owners() -> list[str]:
    query = ["nvidia-smi", "--query-compute-apps=pid,process_name", "--format=csv,noheader"]
    return output(query, LOOK_S).splitlines()


def _containers() -> list[Answer]:
    listed = _docker("/containers/json")
    return [
        {"name": one["Names"][0].lstrip("/") if one.get("Names") else one["Id"][:12], "image": one["Image"]}
        for one in listed
    ]


def _images() -> list[str]:
    """Tags that look like an engine's."""
    tags = [tag for one in _docker("/images/json") for tag in one.get("RepoTags") or ()]
    return sorted(tag for tag in tags if "vllm" in tag.lower())


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=DOCKER_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _docker(target: str) -> list[Answer]:
    connection = _UnixConnection(str(HERE.root / "var/run/docker.sock"))
    try:
        connection.request("GET", target)
        found = json.loads(connection.getresponse().read())
        return found if isinstance(found, list) else []
    except (OSError, ValueError, http.client.HTTPException):
        return []
    finally:
        connection.close()


def _model_roots(home: Path) -> list[str]:
    places = [home / ".cache/huggingface/hub", HERE.root / "srv/models", HERE.root / "models"]
    return [str(place) for place in places if place.is_dir()]


def _engines(home: Path) -> list[Answer]:
    """Environments with vLLM, by metadata on disk: importing one would cost gigabytes."""
    patterns = ("*", ".venv", "*/.venv", "*/venv")
    found = []
    for base in (home, HERE.root / "opt", HERE.root / "srv"):
        for pattern in patterns:
            for folder in sorted(base.glob(pattern)):
                metadata = sorted(folder.glob("lib/python*/site-packages/vllm-*.dist-info"))
                python = folder / "bin/python"
                if metadata and python.exists():
                    version = metadata[0].name[len("vllm-") : -len(".dist-info")]
                    found.append({"python": str(python), "version": version, "owner": _owner(folder)})
    return found


def _owner(place: Path) -> str:
    try:
        return place.owner()
    except (KeyError, OSError):
        return ""
