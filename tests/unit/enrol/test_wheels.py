import hashlib
from pathlib import Path

import pytest

from sparkd.enrol.wheels import MACHINES, PYTHONS, Kind, Locked, choose, fits, lock_file, read_lock

SPARK = Kind((3, 12), "aarch64", (2, 39))
OLD = Kind((3, 11), "x86_64", (2, 17))


@pytest.mark.parametrize(
    ("file_name", "kind", "expected"),
    [
        ("h11-0.16.0-py3-none-any.whl", SPARK, True),
        ("m-1-cp312-cp312-manylinux2014_aarch64.manylinux_2_17_aarch64.whl", SPARK, True),
        ("m-1-cp312-cp312-manylinux_2_28_aarch64.whl", SPARK, True),
        ("m-1-cp312-cp312-manylinux_2_28_x86_64.whl", SPARK, False),
        ("m-1-cp311-cp311-manylinux_2_28_aarch64.whl", SPARK, False),
        ("m-1-cp312-cp312-manylinux_2_40_aarch64.whl", SPARK, False),
        ("m-1-cp311-cp311-manylinux_2_28_x86_64.whl", OLD, False),
        ("m-1-cp311-cp311-manylinux2014_x86_64.whl", OLD, True),
        ("m-1-cp36-abi3-manylinux2014_aarch64.whl", SPARK, True),
        ("m-1-cp313-abi3-manylinux2014_aarch64.whl", SPARK, False),
        ("m-1-cp312-cp312t-manylinux2014_aarch64.whl", SPARK, False),
        ("m-1-cp312-cp312-musllinux_1_2_aarch64.whl", SPARK, False),
        ("m-1-cp312-cp312-macosx_11_0_arm64.whl", SPARK, False),
        ("m-1-py2-none-any.whl", SPARK, False),
        ("m-1.whl", SPARK, False),
    ],
)
def test_which_wheel_fits_which_node(file_name: str, kind: Kind, *, expected: bool) -> None:
    assert fits(file_name, kind) is expected


def wheel(folder: Path, name: str, body: bytes = b"a wheel") -> str:
    (folder / name).write_bytes(body)
    return hashlib.sha256(body).hexdigest()


def test_what_is_missing_is_named_with_the_kind_of_node(tmp_path: Path) -> None:
    digest = wheel(tmp_path, "one-1.0-py3-none-any.whl")
    lock = [Locked("one", "1.0", frozenset({digest})), Locked("two", "2.0", frozenset({digest}))]
    choice = choose(lock, [tmp_path], SPARK)
    assert [file.name for file in choice.wheels] == ["one-1.0-py3-none-any.whl"]
    assert choice.missing == ("two 2.0 for Python 3.12 on aarch64",)


def test_another_file_than_the_locks_is_refused_by_name(tmp_path: Path) -> None:
    digest = wheel(tmp_path, "one-1.0-py3-none-any.whl")
    (tmp_path / "one-1.0-py3-none-any.whl").write_bytes(b"tampered with")
    choice = choose([Locked("one", "1.0", frozenset({digest}))], [tmp_path], SPARK)
    assert choice.wheels == ()
    assert "one-1.0-py3-none-any.whl is another file than the lock names" in choice.missing[0]


def test_a_good_file_in_a_second_folder_is_taken_and_other_versions_are_not(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    digest = wheel(tmp_path / "b", "one-1.0-py3-none-any.whl")
    wheel(tmp_path / "a", "one-1.0-py3-none-any.whl", b"spoilt")
    wheel(tmp_path / "a", "one-1.0.1-py3-none-any.whl")
    lock = [Locked("one", "1.0", frozenset({digest}))]
    assert choose(lock, [tmp_path / "a", tmp_path / "b"], SPARK).wheels == (
        tmp_path / "b/one-1.0-py3-none-any.whl",
    )


def test_the_lock_names_a_wheel_for_every_supported_kind_of_node() -> None:
    lock = {locked.name: locked for locked in read_lock(lock_file().read_text())}
    assert set(lock) == {"h11", "jeepney", "msgspec", "psutil"}
    assert len(lock["msgspec"].hashes) == len(MACHINES) * len(PYTHONS)
    assert len(lock["psutil"].hashes) == len(MACHINES)
    assert all(len(digest) == 64 for locked in lock.values() for digest in locked.hashes)
