"""`[USER@]HOST[:PORT]` and what `~/.ssh/config` makes of it. The host as typed becomes the node's name."""

import getpass
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import paramiko

from sparkd.errors import UsageError
from sparkd.records.names import NODE_ID

DEFAULT_KEYS: Final = ("id_ed25519", "id_ecdsa", "id_rsa")
MAX_INCLUDES: Final = 16
"""As many levels as OpenSSH follows."""
_TARGET = re.compile(r"(?:(?P<user>[^@\s]+)@)?(?P<host>\[[^\]\s]+\]|[^@:\s]+)(?::(?P<port>\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class Route:
    """How one host is reached and entered."""

    name: str
    """As typed."""
    user: str
    host: str
    port: int
    keys: tuple[Path, ...] = ()
    named_keys: bool = False
    """The configuration named `keys`; else they are ssh's own."""
    only_these: bool = False
    """`IdentitiesOnly`: no other key of the ssh agent is shown."""
    label: str | None = None
    """`HostKeyAlias`: the name in known_hosts."""
    known_hosts: tuple[Path, ...] = ()
    """The first one gets new entries."""
    jump: "Route | None" = None


class SshSettings:
    """`~/.ssh/config` of the home folder, then the machine's. Raises UsageError for one that is broken."""

    def __init__(self, home: Path, system: Path = Path("/etc/ssh")) -> None:
        self._home = home
        self._system = system
        self._config = paramiko.SSHConfig()
        for file, base in ((home / ".ssh/config", home / ".ssh"), (system / "ssh_config", system)):
            try:
                self._config.parse(iter(_lines(file, base)))
            except paramiko.SSHException as error:
                raise UsageError(f"{file}: {error}") from error

    def route(self, target: str, *, depth: int = 0) -> Route:
        """Raises UsageError for what is no target, and for a way there that sparkd does not know."""
        if not (match := _TARGET.fullmatch(target)):
            raise UsageError(f"{target!r} is no [USER@]HOST[:PORT]")
        name = match["host"].strip("[]")
        if not depth and not NODE_ID.fullmatch(name):
            raise UsageError(f"{name!r} cannot be a node's name: letters, digits and inner . _ - only")
        if depth > MAX_INCLUDES:
            raise UsageError(f"{target}: ProxyJump goes round in circles")
        found = self._config.lookup(name)
        if "proxycommand" in found:
            raise UsageError(f"{name}: ~/.ssh/config has a ProxyCommand; sparkd knows ProxyJump only")
        port = int(match["port"] or found.get("port", 22))
        if not 0 < port < 65536:
            raise UsageError(f"{target!r}: there is no port {port}")
        ssh = self._home / ".ssh"
        users = _files(found.get("userknownhostsfile"), (ssh / "known_hosts", ssh / "known_hosts2"))
        machines = _files(found.get("globalknownhostsfile"), (self._system / "ssh_known_hosts",))
        named = tuple(Path(file).expanduser() for file in found.get("identityfile", ()))
        return Route(
            name=name,
            user=match["user"] or found.get("user") or getpass.getuser(),
            host=found.get("hostname", name),
            port=port,
            keys=named or tuple(ssh / file for file in DEFAULT_KEYS),
            named_keys=bool(named),
            only_these=found.get("identitiesonly", "no").lower() == "yes",
            label=found.get("hostkeyalias"),
            known_hosts=(*users, *machines),
            jump=self._jump(found.get("proxyjump"), depth),
        )

    def _jump(self, text: str | None, depth: int) -> Route | None:
        """The last of `a,b,c` is the one that reaches the host; each is reached through those before it."""
        if not text or text.lower() == "none":
            return None
        *before, last = (part.strip() for part in text.split(","))
        route = self.route(last, depth=depth + 1)
        return route if not before else replace(route, jump=self._jump(",".join(before), depth))


def _files(text: str | None, default: tuple[Path, ...]) -> tuple[Path, ...]:
    if not text:
        return default
    return tuple(Path(word).expanduser() for word in text.split() if word.lower() != "none")


def _lines(file: Path, base: Path, depth: int = 0) -> Sequence[str]:
    """Of a file, with what it includes in its place: paramiko knows no `Include`, NVIDIA Sync writes one.

    A block of an included file ends with that file, so the block around the `Include` is opened again.
    """
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    lines: list[str] = []
    block = "Host *"
    for line in text.splitlines():
        key, _, value = line.strip().replace("=", " ", 1).partition(" ")
        if key.lower() in {"host", "match"}:
            block = line
        if key.lower() != "include" or depth >= MAX_INCLUDES:
            lines.append(line)
            continue
        for pattern in _words(value):
            for part in _matching(pattern, base):
                lines.extend(_lines(part, base, depth + 1))
        lines.append(block)
    return lines


def _words(text: str) -> list[str]:
    return [quoted or bare for quoted, bare in re.findall(r'"([^"]*)"|(\S+)', text)]


def _matching(pattern: str, base: Path) -> list[Path]:
    path = Path(pattern).expanduser()
    path = path if path.is_absolute() else base / path
    return sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
