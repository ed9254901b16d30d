"""The management address of this machine: where agents are to find the coordinator."""

import ipaddress
import json
import socket
import subprocess
from pathlib import Path
from typing import Final

from sparkd.errors import UsageError

AGENTS_PORT: Final = 7071
_ELSEWHERE = "192.0.2.1"
"""Of the range for documentation (RFC 5737): a route to it is the default route. Nothing is sent."""


def management_address() -> str:
    """The address on the default route, else the only one that others can use.

    Raises UsageError naming the candidates when that is not clear.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probing:
        try:
            probing.connect((_ELSEWHERE, 9))
            found = str(probing.getsockname()[0])
        except OSError:
            found = ""
    if found and not ipaddress.ip_address(found).is_loopback:
        return found
    others = _usable()
    if len(others) == 1:
        return others[0]
    told = ", ".join(others) or "none but loopback"
    raise UsageError(f"which address shall agents dial? name it with --address (this machine has: {told})")


def is_here(node: str) -> bool:
    """Whether a node that `init` named after its host is this machine: nobody reaches it over SSH."""
    return Path("/opt/sparkd/current").is_symlink() and socket.gethostname().partition(".")[0] == node


def agents_endpoint(address: str) -> str:
    """HOST:PORT on which agents are awaited. Raises UsageError for an address that this machine has not."""
    host = address.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probing:
            probing.bind((host, 0))
    except OSError as error:
        told = ", ".join(_usable()) or "none but loopback"
        raise UsageError(f"this machine has no address {host} ({error.strerror}); it has: {told}") from error
    return f"[{host}]:{AGENTS_PORT}" if family == socket.AF_INET6 else f"{host}:{AGENTS_PORT}"


def _usable() -> list[str]:
    try:
        out = subprocess.run(
            ["ip", "-j", "address"],  # noqa: S607  where it lies differs
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        ).stdout
        entries = json.loads(out)
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
    found = [info["local"] for entry in entries for info in entry.get("addr_info", [])]
    addresses = [ipaddress.ip_address(text) for text in found]
    return [str(one) for one in addresses if not one.is_loopback and not one.is_link_local]
