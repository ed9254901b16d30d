"""Gives back what libraries took at their start and do not need afterwards.

NVML clears 13 MiB for GPUs that are not there, and it reads symbols and start-up code once. All of that would
stay in the agent's locked memory. Nothing is lost by it: pages that hold only zeros are zeros when they come
back, and code comes back from its file.
"""

import ctypes
import os
from dataclasses import dataclass
from typing import Final

_PT_LOAD, _WRITABLE = 1, 2
"""Of elf.h: `p_type`, and a bit of `p_flags`."""
_DONTNEED: Final = 4
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class _Phdr(ctypes.Structure):
    """Elf64_Phdr."""

    _fields_ = (
        ("type", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("offset", ctypes.c_uint64),
        ("vaddr", ctypes.c_uint64),
        ("paddr", ctypes.c_uint64),
        ("filesz", ctypes.c_uint64),
        ("memsz", ctypes.c_uint64),
        ("align", ctypes.c_uint64),
    )


class _Info(ctypes.Structure):
    """dl_phdr_info, as far as all C libraries have it."""

    _fields_ = (
        ("addr", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("phdr", ctypes.POINTER(_Phdr)),
        ("phnum", ctypes.c_uint16),
    )


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a loaded library. Addresses; `filled` is where its file's content ends."""

    begin: int
    filled: int
    end: int
    writable: bool


def loaded() -> dict[str, tuple[Segment, ...]]:
    """All libraries of this process by the name of their file."""
    found: dict[str, tuple[Segment, ...]] = {}

    def note(info: "ctypes._Pointer[_Info]", _size: int, _data: int | None) -> int:
        one = info.contents
        headers = [one.phdr[index] for index in range(one.phnum)]
        found[(one.name or b"").decode(errors="replace")] = tuple(
            Segment(
                one.addr + header.vaddr,
                one.addr + header.vaddr + header.filesz,
                one.addr + header.vaddr + header.memsz,
                bool(header.flags & _WRITABLE),
            )
            for header in headers
            if header.type == _PT_LOAD
        )
        return 0

    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Info), ctypes.c_size_t, ctypes.c_void_p)
    ctypes.CDLL(None).dl_iterate_phdr(kind(note), None)
    return found


def give_back(names: tuple[str, ...]) -> int:
    """What libraries whose names begin so do not need now; gives bytes. No other thread may use them."""
    given = 0
    for path, segments in loaded().items():
        wanted = path.rpartition("/")[2].startswith(names)
        for segment in segments if wanted else ():
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
