"""What runs on a node while it is being set up: read as text, sent over SSH, fed to the node's own Python.

Standard library only, no package of ours, and nothing newer than Python 3.9: a node whose Python is too old
must be able to say so. A conversation is one JSON line a question (`{"verb", "args", "bytes"}`, then so
many raw bytes) and one line an answer, with the mark of this conversation before it. Nothing here takes a
command: each verb does one thing, and does nothing when it is done already.
"""

from __future__ import annotations

import compileall
import hashlib
import http.client
import io
import json
import os
import platform
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

Answer = dict[str, Any]

ROOT = Path("/")
"""Everything lies below it; a test has a folder of its own."""
SYSTEMCTL = "systemctl"
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
WRITABLE = {
    CONFIG: 0o600,
    CERTIFICATE: 0o644,
    AUTHORITY: 0o644,
    **{"etc/systemd/system/" + unit: 0o644 for unit in UNITS},
    "etc/systemd/system/sparkd-coordinator.service.d/10-init.conf": 0o644,
}
"""The only files that `write` may touch, with their modes."""
NEEDED_MODULES = ("asyncio", "ctypes", "sqlite3", "ssl", "tomllib")
COMMAND_S = 60
LOOK_S = 15
"""For what a machine in trouble may never answer: nvidia-smi hangs with its driver."""
DOCKER_S = 5


class Refusal(Exception):
    """A person can do something about it; its text says what."""


def begin(args: Answer, _blob: bytes) -> Answer:
    """Where things lie (for tests), and who we are."""
    global ROOT, SYSTEMCTL  # noqa: PLW0603  a script has no other place
    ROOT = Path(args.get("root", "/"))
    SYSTEMCTL = args.get("systemctl", "systemctl")
    user = pwd.getpwuid(os.getuid())
    return {"uid": os.getuid(), "user": user.pw_name, "home": user.pw_dir}


# What is there. -----------------------------------------------------------------------------------------


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
        "has_systemd": (ROOT / "run/systemd/system").is_dir(),
        "has_openssl": shutil.which("openssl") is not None,
        # Below a folder of its own nobody needs to be root.
        "is_root": os.geteuid() == 0 or Path("/") != ROOT,
        "free_bytes": _free_bytes(ROOT / "opt"),
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
        for line in (ROOT / "etc/os-release").read_text().splitlines():
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
        "key": (ROOT / KEY).is_file(),
        "certificate": _text(CERTIFICATE),
        "authority": _text(AUTHORITY),
        "unit": _text("etc/systemd/system/" + UNIT),
        "active": _systemctl_says("is-active", UNIT) == "active",
        "enabled": _systemctl_says("is-enabled", UNIT) == "enabled",
    }
    with suppress(OSError):
        found["current"] = (ROOT / AGENT / "current").readlink().name
    folder = ROOT / AGENT
    if folder.is_dir():
        found["folders"] = sorted(
            entry.name
            for entry in folder.iterdir()
            if entry.is_dir()
            and not entry.is_symlink()
            and not entry.name.startswith(".")
            and _is_whole(entry)
        )
    identity = _text(IDENTITY)
    found["node_id"] = identity.strip() if identity else None
    text = _text(CONFIG)
    if text is not None:
        try:
            import tomllib  # noqa: PLC0415  Python 3.11

            found["config"] = tomllib.loads(text)
        except (ImportError, ValueError):
            found["config"] = {}
    return found


def _is_whole(folder: Path) -> bool:
    """Every file of the manifest is there, as it was sent."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        return all(
            hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
            for name, digest in manifest["files"].items()
        )
    except (OSError, ValueError, KeyError):
        return False


def _text(name: str) -> str | None:
    try:
        return (ROOT / name).read_text()
    except OSError:
        return None


def _fabric() -> list[Answer]:
    """RDMA network devices with what the kernel says of them, from sysfs."""
    devices: dict[str, str] = {}
    for rdma in sorted((ROOT / "sys/class/infiniband").glob("*")):
        for net in sorted((rdma / "device/net").glob("*")):
            devices[net.name] = rdma.name
    found = []
    for name, rdma_name in sorted(devices.items()):
        folder = ROOT / "sys/class/net" / name
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
    out = _output(["ip", "-j", "-4", "address", "show", "dev", interface])
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
    return _output(query, LOOK_S).splitlines()


def _gpu_owners() -> list[str]:
    query = ["nvidia-smi", "--query-compute-apps=pid,process_name", "--format=csv,noheader"]
    return _output(query, LOOK_S).splitlines()


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
    connection = _UnixConnection(str(ROOT / "var/run/docker.sock"))
    try:
        connection.request("GET", target)
        found = json.loads(connection.getresponse().read())
        return found if isinstance(found, list) else []
    except (OSError, ValueError, http.client.HTTPException):
        return []
    finally:
        connection.close()


def _model_roots(home: Path) -> list[str]:
    places = [home / ".cache/huggingface/hub", ROOT / "srv/models", ROOT / "models"]
    return [str(place) for place in places if place.is_dir()]


def _engines(home: Path) -> list[Answer]:
    """Environments with vLLM, by metadata on disk: importing one would cost gigabytes."""
    patterns = ("*", ".venv", "*/.venv", "*/venv")
    found = []
    for base in (home, ROOT / "opt", ROOT / "srv"):
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


# What is changed. ---------------------------------------------------------------------------------------


def stage(args: Answer, blob: bytes) -> Answer:
    """Unpack a bundle (a zip with `manifest.json`) to its folder, whole or not at all."""
    target = _base(args) / _plain_name(args["folder"])
    if _is_whole(target):
        return {"changed": False}
    target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    for left in target.parent.glob(".incoming-*"):
        shutil.rmtree(str(left))
    fresh = Path(tempfile.mkdtemp(prefix=".incoming-", dir=str(target.parent)))
    fresh.chmod(0o755)
    with zipfile.ZipFile(io.BytesIO(blob)) as archive:
        for info in archive.infolist():
            _unpack(archive, info, fresh)
    if not _is_whole(fresh):
        raise Refusal(f"what arrived is not what was sent: {target.name} is damaged")
    compileall.compile_dir(str(fresh / "lib"), quiet=2, stripdir=str(fresh), prependdir=str(target))
    # Everything at once: a thousand files one by one take longer than all else together.
    os.sync()
    if target.exists():
        # Damaged, or it would have been left alone: out of the way in one step, then removed.
        spoilt = target.with_name(".incoming-spoilt")
        target.rename(spoilt)
        fresh.rename(target)
        shutil.rmtree(str(spoilt))
    else:
        fresh.rename(target)
    _sync(target.parent)
    return {"changed": True}


def _unpack(archive: zipfile.ZipFile, info: zipfile.ZipInfo, folder: Path) -> None:
    place = (folder / info.filename).resolve()
    if folder.resolve() not in place.parents:
        raise Refusal(f"{info.filename} would leave its folder")
    place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    place.write_bytes(archive.read(info))
    place.chmod((info.external_attr >> 16) & 0o777 or 0o644)


def _base(args: Answer) -> Path:
    base: str = args.get("base", AGENT)
    if base not in BASES:
        raise Refusal(f"{base!r} is no place for bundles")
    return ROOT / base


def _plain_name(text: str) -> str:
    if not text or "/" in text or text.startswith("."):
        raise Refusal(f"{text!r} is no name of a folder")
    return text


def identity(args: Answer, _blob: bytes) -> Answer:
    """The node's id: the one it has, unless `replace` names it as one that is not to be used any more."""
    known = (_text(IDENTITY) or "").strip()
    if not known or known == args.get("replace"):
        known = args["proposed"]
        _write(ROOT / IDENTITY, known + "\n", 0o644)
    return {"node_id": known}


def request_certificate(_args: Answer, _blob: bytes) -> Answer:
    """The node's key, made here if there is none, and a signing request for it. The key stays here."""
    key = ROOT / KEY
    if not key.is_file():
        made = _checked(["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"])
        _write(key, made, 0o600)
    asked = ["openssl", "req", "-new", "-key", str(key), "-subj", "/CN=node", "-config", os.devnull]
    return {"csr": _checked(asked)}


def write(args: Answer, _blob: bytes) -> Answer:
    """One of our own files."""
    name = args["name"]
    if name not in WRITABLE:
        raise Refusal(f"{name!r} is no file of ours")
    if _text(name) == args["text"]:
        return {"changed": False}
    _write(ROOT / name, args["text"], WRITABLE[name])
    return {"changed": True}


def link(args: Answer, _blob: bytes) -> Answer:
    """`current` points to a folder, at one instant; the agent's program is on the search path."""
    place = _base(args) / "current"
    name = _plain_name(args["folder"])
    if not (place.parent / name / "manifest.json").is_file():
        raise Refusal(f"{name} is not there")
    if place.parent == ROOT / AGENT:
        _offer_command()
    if place.is_symlink() and place.readlink().name == name:
        return {"changed": False}
    fresh = place.with_name(".incoming-current")
    with suppress(FileNotFoundError):
        fresh.unlink()
    fresh.symlink_to(name)
    fresh.replace(place)
    _sync(place.parent)
    return {"changed": True}


def _offer_command() -> None:
    """Unless something else has the name, or there is no such folder."""
    place = ROOT / COMMAND
    with suppress(OSError):
        place.symlink_to("/" + AGENT + "/current/bin/sparkd-agent")


def start(args: Answer, _blob: bytes) -> Answer:
    """A unit: enabled, and running what is there now. `restart`: also when it runs already."""
    unit = args.get("unit", UNIT)
    if unit not in UNITS:
        raise Refusal(f"{unit!r} is no unit of ours")
    _checked([SYSTEMCTL, "daemon-reload"])
    _checked([SYSTEMCTL, "enable", unit])
    _checked([SYSTEMCTL, "restart" if args.get("restart") else "start", unit])
    return {}


def verify(_args: Answer, _blob: bytes) -> Answer:
    """How the agent stands, in its own words."""
    program = ROOT / AGENT / "current/bin/sparkd-agent"
    asked = [str(program), "status", "-o", "json", "--config", str(ROOT / CONFIG)]
    status = _output(asked)
    try:
        said = json.loads(status)
    except ValueError:
        said = {}
    return {"active": _systemctl_says("is-active", UNIT), "status": said, "log": _journal()}


def uninstall(args: Answer, _blob: bytes) -> Answer:
    """The agent removes itself: what it removed, and what stays. `force`: also while ranks live there."""
    program = ROOT / AGENT / "current/bin/sparkd-agent"
    if not program.exists():
        return {"removed": _clear_half_done(), "left": []}
    asked = [str(program), "uninstall", "-o", "json", "--config", str(ROOT / CONFIG)]
    asked += ["--root", str(ROOT), "--systemctl", SYSTEMCTL]
    answer = json.loads(_checked(asked + (["--force"] if args.get("force") else [])))
    return answer if isinstance(answer, dict) else {}


def _clear_half_done() -> list[str]:
    """What an enrolment left that broke off before there was a program."""
    removed = []
    for name in (CONFIG, CERTIFICATE, AUTHORITY, "etc/systemd/system/" + UNIT, KEY, IDENTITY, COMMAND):
        with suppress(FileNotFoundError):
            (ROOT / name).unlink()
            removed.append("/" + name)
    for name in (STATE + "/tls", STATE, "var/lib/sparkd", "etc/sparkd"):
        with suppress(OSError):
            (ROOT / name).rmdir()
    folder = ROOT / AGENT
    if folder.is_dir():
        shutil.rmtree(str(folder))
        removed.append("/" + AGENT)
    return removed


def _journal() -> str:
    return _output(["journalctl", "--unit", UNIT, "--lines", "20", "--no-pager", "--output", "cat"])


def _systemctl_says(*words: str) -> str:
    return _output([SYSTEMCTL, *words]).strip()


def _output(argv: list[str], timeout_s: int = COMMAND_S) -> str:
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


def _checked(argv: list[str]) -> str:
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


def _write(place: Path, text: str, mode: int) -> None:
    """Whole or not at all, durable; its folder is made if it is absent. The agent's state is root's alone."""
    state = ROOT / STATE
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
    _sync(place.parent)


def _sync(place: Path) -> None:
    descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# The conversation. --------------------------------------------------------------------------------------

VERBS = {
    verb.__name__: verb
    for verb in (begin, probe, stage, identity, request_certificate, write, link, start, verify, uninstall)
}


def converse(mark: str) -> None:
    """Answer until the other end goes away. What our children print goes nowhere, not into the answers."""
    questions = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    # Whatever sudo or a login left: what is copied is for all users to read.
    os.umask(0o022)
    while True:
        line = questions.readline()
        if not line:
            return
        question = json.loads(line)
        blob = questions.read(question.get("bytes", 0))
        answer: Answer
        try:
            answer = {"ok": VERBS[question["verb"]](question["args"], blob)}
        except Refusal as error:
            answer = {"error": str(error)}
        except Exception as error:  # noqa: BLE001  whatever it is, the other end must hear of it
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(f"{mark} {json.dumps(answer)}\n".encode())


if __name__ == "__main__":
    converse(sys.argv[1])
