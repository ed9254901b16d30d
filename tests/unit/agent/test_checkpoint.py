from pathlib import Path
from typing import Any

import pytest

from sparkd_agent.checkpoint import find_models


@pytest.fixture
def roots(tmp_path: Path) -> tuple[str, ...]:
    """Two model roots: the target in the second one, a drafter beside it."""
    target = tmp_path / "b" / "m"
    draft = tmp_path / "b" / "d" / "dflash"
    for folder in (target, draft):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text('{"a": 1}')
        (folder / "model.safetensors").write_bytes(b"12345678")
    (tmp_path / "a").mkdir()
    return (str(tmp_path / "a"), str(tmp_path / "b"))


MODEL: dict[str, Any] = {"path": "m", "also": {"draft": {"path": "d/dflash"}}}


def test_a_model_and_its_further_ones_are_found_below_the_roots(
    roots: tuple[str, ...], tmp_path: Path
) -> None:
    assert find_models(MODEL, roots) == {
        "path": str(tmp_path / "b" / "m"),
        "bytes": 16,
        "also": {"draft": str(tmp_path / "b" / "d" / "dflash")},
        "defects": [],
    }


def test_a_snapshot_of_the_hub_is_found(roots: tuple[str, ...], tmp_path: Path) -> None:
    snapshot = tmp_path / "a" / "models--o--d" / "snapshots" / ("c" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (snapshot / "a.bin").touch()
    also = {"draft": {"path": None, "id": "o/d", "revision": "c" * 40}}
    assert find_models({"path": "m", "also": also}, roots)["also"] == {"draft": str(snapshot)}


def test_a_drafter_that_is_nowhere_is_named_with_the_places(roots: tuple[str, ...], tmp_path: Path) -> None:
    wanted = {"path": "m", "also": {"draft": {"path": "e"}}}
    with pytest.raises(LookupError, match=r"no model for model\.also\.draft .*looked at .*/a/e, .*/b/e"):
        find_models(wanted, roots)
    with pytest.raises(LookupError, match=r"no model with a config\.json; looked at"):
        find_models({"path": "x"}, roots)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{\n "a": 1,\n}', "line {2,3}: a comma after the last entry, before `}`"),
        ('{\n "a": [1, 2,]\n}', "line 2: a comma after the last entry, before `]`"),
        ('{\n "a": 1\n "b": 2}', "line 3: not JSON: Expecting ',' delimiter"),
        ("", "line 1: not JSON: Expecting value"),
        ("\xff", "cannot be read"),
    ],
)
def test_what_is_wrong_with_a_configuration_is_said_in_words(
    roots: tuple[str, ...], tmp_path: Path, text: str, says: str
) -> None:
    config = tmp_path / "b" / "d" / "dflash" / "config.json"
    config.write_bytes(text.encode("latin-1"))
    (defect,) = find_models(MODEL, roots)["defects"]
    assert defect.startswith(str(config))
    # Python 3.13 names the line of the comma, earlier ones that of the bracket.
    wanted = [says.replace("{2,3}", line) for line in ("2", "3")]
    assert any(text in defect for text in wanted)


def test_a_drafter_without_weights_is_a_defect(roots: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "b" / "d" / "dflash" / "model.safetensors").unlink()
    (defect,) = find_models(MODEL, roots)["defects"]
    assert "no weights in it" in defect
