"""A cable between two network namespaces, and interfaces up and down: what `ip` does where there is none."""

import fcntl
import os
import socket
import struct
from typing import Final

_NEW_LINK: Final = 16
_FLAGS: Final = 0x1 | 0x4 | 0x200 | 0x400  # request, acknowledge, exclusive, create
_HEADER: Final = struct.Struct("=IHHII")
_LINK: Final = struct.Struct("=BxHiII")
_NAME, _LINKINFO, _NET_NS_PID, _KIND, _DATA, _PEER = 3, 18, 19, 1, 2, 1
_SET_FLAGS, _SET_ADDRESS, _SET_MASK = 0x8914, 0x8916, 0x891C
_UP: Final = 0x1


def lay_cable(one: tuple[str, int], other: tuple[str, int]) -> None:
    """A veth pair; each end is the name of the interface, and a process in whose namespace it appears.

    Raises OSError.
    """
    peer = _LINK.pack(0, 0, 0, 0, 0) + _end(*other)
    info = _attribute(_KIND, b"veth\0") + _attribute(_DATA, _attribute(_PEER, peer))
    body = _LINK.pack(0, 0, 0, 0, 0) + _end(*one) + _attribute(_LINKINFO, info)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as asked:
        asked.bind((0, 0))
        asked.send(_HEADER.pack(_HEADER.size + len(body), _NEW_LINK, _FLAGS, 1, 0) + body)
        answer = asked.recv(1 << 14)
    error = -struct.unpack_from("=i", answer, _HEADER.size)[0]
    if error:
        raise OSError(error, f"veth {one[0]}: {os.strerror(error)}")


def _end(name: str, pid: int) -> bytes:
    return _attribute(_NAME, name.encode() + b"\0") + _attribute(_NET_NS_PID, struct.pack("=I", pid))


def _attribute(kind: int, value: bytes) -> bytes:
    size = 4 + len(value)
    return struct.pack("=HH", size, kind) + value + bytes(-size % 4)


def set_up(name: str, *, up: bool) -> None:
    """In the network namespace of the calling thread. Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        fcntl.ioctl(asked, _SET_FLAGS, struct.pack("16sH22x", name.encode(), _UP if up else 0))


def set_address(name: str, address: str, mask: str = "255.255.255.0") -> None:
    """In the network namespace of the calling thread. Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for request, value in ((_SET_ADDRESS, address), (_SET_MASK, mask)):
            body = struct.pack("16sH2x4s16x", name.encode(), socket.AF_INET, socket.inet_aton(value))
            fcntl.ioctl(asked, request, body)
