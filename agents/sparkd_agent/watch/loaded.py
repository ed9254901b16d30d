"""Gives back what libraries took at their start and do not need afterwards.

NVML clears 13 MiB for GPUs that are not there, and it reads symbols and start-up code once. All of that would
stay in the agent's locked memory. Nothing is lost by it: pages that hold only zeros are zeros when they come
back, and code comes back from its file.
"""

import ctypes
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PT_LOAD, _WRITABLE = 1, 2
"""Of elf.h: `p_type`, and a bit of `p_flags`."""
_ELF64: Final = b"\x7fELF\x02"
_DONTNEED: Final = 4
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_BEGINNING: Final = re.compile(r"^([0-9a-f]+)-[0-9a-f]+ \S+ 0+ \S+ [1-9]\d* +(/.*)$", re.MULTILINE)
"""Where the beginning of a file is mapped (proc_pid_maps(5))."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a loaded library. Addresses; `filled` is where its file's content ends."""

    begin: int
    filled: int
    end: int
    writable: bool


def loaded(names: tuple[str, ...], maps: str) -> dict[str, tuple[Segment, ...]]:
    """Libraries of this process whose names begin so, by their path. `maps`: its /proc/self/maps.

    The segments are those of the file's own table: what the map shows as read-only may have been relocated.
    The C library's own list (`dl_iterate_phdr`) is no way: it holds a lock that imports in other threads
    want, while its callback wants the lock of the interpreter, which they hold.
    """
    found: dict[str, tuple[Segment, ...]] = {}
    for line in _BEGINNING.finditer(maps):
        path = line[2]
        if path.rpartition("/")[2].startswith(names) and path not in found:
            found[path] = _segments(Path(path), int(line[1], 16))
    return found


def _segments(path: Path, begin: int) -> tuple[Segment, ...]:
    """None of a file that is gone, or that is no library of 64 bits."""
    try:
        with path.open("rb") as file:
            head = file.read(64)
            if len(head) < 64 or not head.startswith(_ELF64):
                return ()
            place, size, count = *struct.unpack_from("<Q", head, 32), *struct.unpack_from("<HH", head, 54)
            file.seek(place)
            table = file.read(size * count)
    except OSError:
        return ()
    # Elf64_Phdr: type, flags, offset, vaddr, paddr, filesz, memsz, align.
    headers = [struct.unpack_from("<IIQQQQQQ", table, index * size) for index in range(count)]
    parts = [header for header in headers if header[0] == _PT_LOAD]
    if not parts:
        return ()
    base = begin - _down(parts[0][3])
    return tuple(
        Segment(base + vaddr, base + vaddr + filesz, base + vaddr + memsz, bool(flags & _WRITABLE))
        for _, flags, _, vaddr, _, filesz, memsz, _ in parts
    )


def give_back(names: tuple[str, ...]) -> int:
    """What libraries whose names begin so do not need now; gives bytes. No other thread may use them."""
    given = 0
    for segments in loaded(names, Path("/proc/self/maps").read_text()).values():
        for segment in segments:
            if segment.writable:
                given += _give_back_zeros(_up(segment.filled), _up(segment.end))
            else:
                given += _drop(_down(segment.begin), _up(segment.end))
    return given


def _give_back_zeros(begin: int, end: int) -> int:
    """Whole pages behind the file's content, which begin as zeros and mostly stay so."""
    zeros = bytes(_PAGE)
    given, first = 0, begin
    for page in range(begin, end, _PAGE):
        if ctypes.string_at(page, _PAGE) != zeros:
            given += _drop(first, page)
            first = page + _PAGE
    return given + _drop(first, end)


def _drop(begin: int, end: int) -> int:
    if end <= begin:
        return 0
    libc = ctypes.CDLL(None)
    where, size = ctypes.c_void_p(begin), ctypes.c_size_t(end - begin)
    libc.munlock(where, size)  # what is locked is not given back; the kill path needs none of it
    return end - begin if libc.madvise(where, size, _DONTNEED) == 0 else 0


def _up(address: int) -> int:
    return -(-address // _PAGE) * _PAGE


def _down(address: int) -> int:
    return address // _PAGE * _PAGE
