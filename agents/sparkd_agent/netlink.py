"""The addresses of this machine's interfaces, from the kernel's rtnetlink: no sysfs file has them."""

import ipaddress
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

_GET_ADDRESSES: Final = 22
_REQUEST_ALL: Final = 0x301
_DONE, _ERROR, _ADDRESS = 3, 2, 20
_ATTRIBUTE_ADDRESS, _ATTRIBUTE_LOCAL = 1, 2
_UNUSABLE: Final = 0x48
"""IFA_F_TENTATIVE and IFA_F_DADFAILED: not, or never, this machine's."""
_MESSAGE: Final = struct.Struct("=IHHII")
_ENTRY: Final = struct.Struct("=BBBBi")
_ATTRIBUTE: Final = struct.Struct("=HH")


def addresses(name_of: Callable[[int], str] = socket.if_indextoname) -> dict[str, tuple[str, ...]]:
    """By interface, each with the length of its prefix. Raises OSError.

    An interface that is gone before `name_of` is asked for its name (a container's, all the time) has none.
    """
    found: dict[str, list[str]] = {}
    with socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE
    ) as asked:
        asked.settimeout(2.0)
        asked.bind((0, 0))
        body = _ENTRY.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
        asked.send(_MESSAGE.pack(_MESSAGE.size + len(body), _GET_ADDRESSES, _REQUEST_ALL, 1, 0) + body)
        for message in _messages(asked):
            for index, address in entries(message):
                with suppress(OSError):
                    found.setdefault(name_of(index), []).append(address)
    return {name: tuple(listed) for name, listed in found.items()}


def _messages(asked: socket.socket) -> Iterator[bytes]:
    while True:
        data = asked.recv(1 << 16)
        while data:
            size, kind, _, _, _ = _MESSAGE.unpack_from(data)
            if kind == _ERROR:
                raise OSError("the kernel does not tell its addresses")
            if kind == _DONE:
                return
            if kind == _ADDRESS:
                yield data[_MESSAGE.size : size]
            data = data[_aligned(size) :]


def entries(message: bytes) -> Iterator[tuple[int, str]]:
    """One RTM_NEWADDR's index of the interface and address with prefix; nothing if it is not usable."""
    family, prefix, flags, _, index = _ENTRY.unpack_from(message)
    if flags & _UNUSABLE or family not in (socket.AF_INET, socket.AF_INET6):
        return
    attributes: dict[int, bytes] = {}
    rest = message[_ENTRY.size :]
    while len(rest) >= _ATTRIBUTE.size:
        size, kind = _ATTRIBUTE.unpack_from(rest)
        if size < _ATTRIBUTE.size:
            break
        attributes[kind] = rest[_ATTRIBUTE.size : size]
        rest = rest[_aligned(size) :]
    # On a point-to-point link the other attribute is the peer's address.
    packed = attributes.get(_ATTRIBUTE_LOCAL) or attributes.get(_ATTRIBUTE_ADDRESS)
    if packed:
        yield index, f"{ipaddress.ip_address(packed)}/{prefix}"


def _aligned(size: int) -> int:
    return (size + 3) & ~3
