"""What is changed. Each verb does nothing when it is done already."""

from __future__ import annotations

import compileall
import io
import json
import os
import shutil
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path

from sparkd.enrol.onnode.place import (
    AGENT,
    AUTHORITY,
    BASES,
    CERTIFICATE,
    COMMAND,
    CONFIG,
    HERE,
    IDENTITY,
    KEY,
    STATE,
    UNIT,
    UNITS,
    Answer,
    Refusal,
    checked,
    is_whole,
    output,
    sync,
    systemctl_says,
    text_of,
    write_whole,
)

WRITABLE = {
    CONFIG: 0o600,
    CERTIFICATE: 0o644,
    AUTHORITY: 0o644,
    **{"etc/systemd/system/" + unit: 0o644 for unit in UNITS},
    "etc/systemd/system/sparkd-coordinator.service.d/10-init.conf": 0o644,
}
"""The only files that `write` may touch, with their modes."""


def stage(args: Answer, blob: bytes) -> Answer:
    """Unpack a bundle (a zip with `manifest.json`) to its folder, whole or not at all."""
    target = _base(args) / _plain_name(args["folder"])
    if is_whole(target):
        return {"changed": False}
    target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    for left in target.parent.glob(".incoming-*"):
        shutil.rmtree(str(left))
    fresh = Path(tempfile.mkdtemp(prefix=".incoming-", dir=str(target.parent)))
    fresh.chmod(0o755)
    with zipfile.ZipFile(io.BytesIO(blob)) as archive:
        for info in archive.infolist():
            _unpack(archive, info, fresh)
    if not is_whole(fresh):
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
    sync(target.parent)
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
    return HERE.root / base


def _plain_name(text: str) -> str:
    if not text or "/" in text or text.startswith("."):
        raise Refusal(f"{text!r} is no name of a folder")
    return text


def identity(args: Answer, _blob: bytes) -> Answer:
    """The node's id: the one it has, unless `replace` names it as one that is not to be used any more."""
    known = (text_of(IDENTITY) or "").strip()
    if not known or known == args.get("replace"):
        known = args["proposed"]
        write_whole(HERE.root / IDENTITY, known + "\n", 0o644)
    return {"node_id": known}


def request_certificate(_args: Answer, _blob: bytes) -> Answer:
    """The node's key, made here if there is none, and a signing request for it. The key stays here."""
    key = HERE.root / KEY
    if not key.is_file():
        made = checked(["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"])
        write_whole(key, made, 0o600)
    asked = ["openssl", "req", "-new", "-key", str(key), "-subj", "/CN=node", "-config", os.devnull]
    return {"csr": checked(asked)}


def write(args: Answer, _blob: bytes) -> Answer:
    """One of our own files."""
    name = args["name"]
    if name not in WRITABLE:
        raise Refusal(f"{name!r} is no file of ours")
    if text_of(name) == args["text"]:
        return {"changed": False}
    write_whole(HERE.root / name, args["text"], WRITABLE[name])
    return {"changed": True}


def link(args: Answer, _blob: bytes) -> Answer:
    """`current` points to a folder, at one instant; the agent's program is on the search path."""
    place = _base(args) / "current"
    name = _plain_name(args["folder"])
    if not (place.parent / name / "manifest.json").is_file():
        raise Refusal(f"{name} is not there")
    if place.parent == HERE.root / AGENT:
        _offer_command()
    if place.is_symlink() and place.readlink().name == name:
        return {"changed": False}
    fresh = place.with_name(".incoming-current")
    with suppress(FileNotFoundError):
        fresh.unlink()
    fresh.symlink_to(name)
    fresh.replace(place)
    sync(place.parent)
    return {"changed": True}


def _offer_command() -> None:
    """Unless something else has the name, or there is no such folder."""
    place = HERE.root / COMMAND
    with suppress(OSError):
        place.symlink_to("/" + AGENT + "/current/bin/sparkd-agent")


def start(args: Answer, _blob: bytes) -> Answer:
    """A unit: enabled, and running what is there now. `restart`: also when it runs already."""
    unit = args.get("unit", UNIT)
    if unit not in UNITS:
        raise Refusal(f"{unit!r} is no unit of ours")
    checked([HERE.systemctl, "daemon-reload"])
    checked([HERE.systemctl, "enable", unit])
    checked([HERE.systemctl, "restart" if args.get("restart") else "start", unit])
    return {}


def verify(_args: Answer, _blob: bytes) -> Answer:
    """How the agent stands, in its own words."""
    program = HERE.root / AGENT / "current/bin/sparkd-agent"
    asked = [str(program), "status", "-o", "json", "--config", str(HERE.root / CONFIG)]
    status = output(asked)
    try:
        said = json.loads(status)
    except ValueError:
        said = {}
    return {"active": systemctl_says("is-active", UNIT), "status": said, "log": _journal()}


def uninstall(args: Answer, _blob: bytes) -> Answer:
    """The agent removes itself: what it removed, and what stays. `force`: also while ranks live there."""
    program = HERE.root / AGENT / "current/bin/sparkd-agent"
    if not program.exists():
        return {"removed": _clear_half_done(), "left": []}
    asked = [str(program), "uninstall", "-o", "json", "--config", str(HERE.root / CONFIG)]
    asked += ["--root", str(HERE.root), "--systemctl", HERE.systemctl]
    answer = json.loads(checked(asked + (["--force"] if args.get("force") else [])))
    return answer if isinstance(answer, dict) else {}


def _clear_half_done() -> list[str]:
    """What an enrolment left that broke off before there was a program."""
    removed = []
    for name in (CONFIG, CERTIFICATE, AUTHORITY, "etc/systemd/system/" + UNIT, KEY, IDENTITY, COMMAND):
        with suppress(FileNotFoundError):
            (HERE.root / name).unlink()
            removed.append("/" + name)
    for name in (STATE + "/tls", STATE, "var/lib/sparkd", "etc/sparkd"):
        with suppress(OSError):
            (HERE.root / name).rmdir()
    folder = HERE.root / AGENT
    if folder.is_dir():
        shutil.rmtree(str(folder))
        removed.append("/" + AGENT)
    return removed


def _journal() -> str:
    return output(["journalctl", "--unit", UNIT, "--lines", "20", "--no-pager", "--output", "cat"])
