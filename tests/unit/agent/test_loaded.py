"""What a library gives back, with a real one: a copy of the C library's mathematics."""

import ctypes
import ctypes.util
import re
import shutil
from pathlib import Path

import pytest

from sparkd_agent.watch.loaded import give_back, loaded

MAPS = Path("/proc/self/maps")


@pytest.fixture
def library(tmp_path: Path) -> tuple[ctypes.CDLL, Path]:
    place = re.search(r"(/\S*/libm[.-]\S*)", MAPS.read_text())
    assert place is not None, "Python itself has it loaded"
    copy = tmp_path / "libown_math.so"
    shutil.copyfile(place[1], copy)
    opened = ctypes.CDLL(str(copy))
    opened.cos.restype = ctypes.c_double
    opened.cos.argtypes = (ctypes.c_double,)
    return opened, copy


def resident(path: Path) -> int:
    """KiB of it in memory."""
    smaps = Path("/proc/self/smaps").read_text()
    found, total = False, 0
    for line in smaps.splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            found = line.endswith(str(path))
        elif found and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total


def test_a_library_gives_its_code_back_and_works_on(library: tuple[ctypes.CDLL, Path]) -> None:
    opened, path = library
    assert opened.cos(0.0) == 1.0
    before = resident(path)
    assert give_back((path.name,)) > 0
    assert resident(path) < before
    assert opened.cos(0.0) == 1.0


def test_segments_lie_where_the_library_is_mapped(library: tuple[ctypes.CDLL, Path]) -> None:
    _, path = library
    text = MAPS.read_text()
    mapped = [
        range(int(line[1], 16), int(line[2], 16))
        for line in re.finditer(r"^([0-9a-f]+)-([0-9a-f]+) .*$", text, re.MULTILINE)
        if line[0].endswith(str(path))
    ]
    segments = loaded((path.name,), text)[str(path)]
    assert {segment.writable for segment in segments} == {True, False}
    assert all(any(segment.begin in one for one in mapped) for segment in segments)


def test_what_is_no_library_has_no_segments(tmp_path: Path) -> None:
    file = tmp_path / "libown.so"
    file.write_bytes(b"text")
    line = "7f00-7f10 r--p 00000000 08:01 77 "
    assert loaded(("libown",), f"{line} {file}\n{line} {file} (deleted)\n") == {
        str(file): (),
        f"{file} (deleted)": (),
    }
    assert not give_back(("no such library",))
