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


@pytest.mark.parametrize("text", ["", "0.24", ">=", ">=a", ">=0.24,", "~=0.24"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="range"):
        VersionRange.parse(text)
