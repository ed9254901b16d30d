"""Pieces of files, read at a bounded pace."""

import hashlib
from pathlib import Path

import pytest

from sparkd_agent.checkpoint import file_of
from sparkd_agent.hashing import hash_piece

MIB = 1 << 20


class Time:
    """Reading takes none; only sleeping does."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(
    ("offset", "length"), [(0, 5 * MIB), (0, MIB + 7), (MIB + 3, 2 * MIB), (5 * MIB, 10), (9, 0)]
)
def test_a_piece_is_what_is_there(tmp_path: Path, offset: int, length: int) -> None:
    file = tmp_path / "shard"
    data = bytes(range(256)) * (3 * MIB // 256)
    file.write_bytes(data)
    part = data[offset : offset + length]
    assert hash_piece(file, offset, length, 1e12) == (hashlib.sha256(part).hexdigest(), len(part))


def test_it_reads_no_faster_than_it_may(tmp_path: Path) -> None:
    file = tmp_path / "shard"
    file.write_bytes(bytes(8 * MIB))
    time = Time()
    hash_piece(file, 0, 8 * MIB, 2 * MIB, sleep=time.sleep, clock=lambda: time.now)
    assert time.now == pytest.approx(4.0)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/b", "..", ".hidden", ""])
def test_no_name_leads_out_of_the_model(tmp_path: Path, name: str) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m/config.json").write_text("{}")
    model = {"path": str(tmp_path / "m")}
    assert file_of(model, "", "config.json", ()) == tmp_path / "m/config.json"
    with pytest.raises(LookupError):
        file_of(model, "", name, ())
