"""Which host keys a person trusts: OpenSSH's known_hosts files, with the line of every entry.

paramiko reads these files too, but forgets lines and knows no `@revoked`. Certificates of hosts
(`@cert-authority`) are not understood: such a host counts as unknown.
"""

import base64
import binascii
import fnmatch
import hashlib
import hmac
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Trust = Literal["known", "unknown", "changed", "revoked"]


@dataclass(frozen=True, slots=True)
class KnownKey:
    file: Path
    line: int
    marker: str
    """`@revoked`, or empty."""
    hosts: str
    kind: str
    """`ssh-ed25519` and so on."""
    key: bytes

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Judgement:
    trust: Trust
    entry: KnownKey | None = None
    """The line that decided; None when no line speaks of the host."""


def host_label(host: str, port: int) -> str:
    """How a known_hosts file names it."""
    return host if port == 22 else f"[{host}]:{port}"


def fingerprint(key: bytes) -> str:
    """As ssh shows it: `SHA256:…`."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def read_known_hosts(files: Iterable[Path]) -> tuple[KnownKey, ...]:
    """All entries, in order. Files that are absent, and lines that cannot be read, say nothing."""
    found: list[KnownKey] = []
    for file in files:
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if entry := _parse(file, number, line):
                found.append(entry)
    return tuple(found)


def keys_of(entries: Iterable[KnownKey], label: str) -> tuple[KnownKey, ...]:
    """The entries that speak of a host."""
    return tuple(entry for entry in entries if _matches(entry.hosts, label))


def judge(entries: Iterable[KnownKey], label: str, kind: str, key: bytes) -> Judgement:
    """Whether a host that shows `key` is who it was.

    A key of a kind that no line holds, where lines of other kinds exist, is *changed* as well: whoever stands
    in the middle may choose the kind.
    """
    mine = keys_of(entries, label)
    for entry in mine:
        if entry.marker == "@revoked" and entry.key == key:
            return Judgement("revoked", entry)
    trusted = [entry for entry in mine if not entry.marker]
    for entry in trusted:
        if entry.key == key:
            return Judgement("known", entry)
    same_kind = [entry for entry in trusted if entry.kind == kind]
    for entry in (*same_kind, *trusted):
        return Judgement("changed", entry)
    return Judgement("unknown")


def remember(file: Path, label: str, kind: str, key: bytes) -> None:
    """Append a line, as ssh does when a person said yes. Raises OSError."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    line = f"{label} {kind} {base64.b64encode(key).decode()}\n"
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = "\n" + line
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def _parse(file: Path, number: int, line: str) -> KnownKey | None:
    words = line.split()
    if not words or words[0].startswith("#"):
        return None
    marker = words.pop(0) if words[0].startswith("@") else ""
    if marker not in ("", "@revoked") or len(words) < 3:
        return None
    try:
        key = base64.b64decode(words[2], validate=True)
    except (binascii.Error, ValueError):
        return None
    return KnownKey(file, number, marker, words[0], words[1], key)


def _matches(hosts: str, label: str) -> bool:
    if hosts.startswith("|1|"):
        return _is_hash_of(hosts, label)
    hit = False
    for pattern in hosts.split(","):
        # Brackets are part of the name here (`[host]:2222`), not a set of characters.
        plain = pattern.removeprefix("!").lower().replace("[", "[[]")
        if fnmatch.fnmatchcase(label.lower(), plain):
            if pattern.startswith("!"):
                return False
            hit = True
    return hit


def _is_hash_of(hosts: str, label: str) -> bool:
    try:
        _, _, salt, digest = hosts.split("|")
        expected = hmac.digest(base64.b64decode(salt), label.encode(), "sha1")
        return hmac.compare_digest(expected, base64.b64decode(digest))
    except (ValueError, binascii.Error):
        return False
