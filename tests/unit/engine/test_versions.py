import pytest

from sparkd.engine.versions import VersionRange, release_of


@pytest.mark.parametrize(
    ("version", "inside"),
    [("0.24.0", True), ("0.24", True), ("0.32.0+cpu", True), ("0.33.9", True), ("0.34.0", False),
     ("0.23.9", False), ("0.33.1rc1.dev20+gab12", True), ("1.0", False)],
)  # fmt: skip
def test_range(version: str, inside: bool) -> None:
    assert VersionRange.parse(">=0.24,<0.34").contains(version) is inside


def test_development_builds_are_told_from_releases() -> None:
    assert release_of("0.33.1rc1.dev20+gab12") == ((0, 33, 1), True)
    assert release_of("0.32.0+cpu") == ((0, 32), False)
    assert release_of("0.32.0.post1") == ((0, 32), False)


def test_alternatives_leave_out_what_lies_between() -> None:
    both = VersionRange.parse(">=0.24,<0.25 | >=0.33,<0.34")
    assert [both.contains(v) for v in ("0.24.0", "0.24.1", "0.25.0", "0.32.0", "0.33.0")] == [
        True, True, False, False, True,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "admitted"),
    [("==0.24.0", True), (">=0.24.1,<0.25", True), (">0.23,<0.24", False), (">=0.25 | <0.24.3", True)],
)
def test_a_range_admits_a_release_if_it_has_any_of_its_patches(text: str, admitted: bool) -> None:
    assert VersionRange.parse(text).admits("0.24") is admitted


@pytest.mark.parametrize("text", ["", "|", ">=0.24 |", "0.24", ">=", ">=a", ">=0.24,", "~=0.24"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="range"):
        VersionRange.parse(text)
