import json
from pathlib import Path

import pytest

from sparkd.coordinator.backup import restore_backup, write_backup
from sparkd.coordinator.tokens import mint_token, read_tokens
from sparkd.enrol.authority import load_authority, make_authority
from sparkd.enrol.roster import enrol_node, read_roster
from sparkd.errors import Conflict, NotFound, UsageError
from sparkd.private_file import write_private


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "coordinator"
    make_authority(folder, 1_800_000_000.0)
    enrol_node(folder, "0123456789abcdef", "spark-1")
    mint_token(folder, "ann", "admin")
    write_private(folder / "keys/glm", "api-key\n")
    (folder / "coordinator.sqlite").write_bytes(b"a database")
    return folder


def test_another_machine_becomes_the_same_coordinator(state: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "backup.json", tmp_path / "other"
    write_backup(state, file)
    assert file.stat().st_mode & 0o777 == 0o600
    roster = restore_backup(file, other)
    assert roster == read_roster(state)
    assert load_authority(other).pem == load_authority(state).pem
    assert read_tokens(other) == read_tokens(state)
    assert (other / "keys/glm").read_text() == "api-key\n"
    assert (other / "ca.key").stat().st_mode & 0o777 == 0o600
    # Agents remember more than a database that was kept somewhere.
    assert not (other / "coordinator.sqlite").exists()


def test_the_same_machine_may_be_restored_and_anothers_may_not(state: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "backup.json", tmp_path / "other"
    write_backup(state, file)
    restore_backup(file, state)
    make_authority(other, 1_800_000_000.0)
    before = (other / "ca.key").read_text()
    with pytest.raises(Conflict, match="another coordinator"):
        restore_backup(file, other)
    assert (other / "ca.key").read_text() == before


def test_a_backup_replaces_nothing_and_needs_an_authority(state: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine"
    file.write_text("mine")
    with pytest.raises(Conflict):
        write_backup(state, file)
    assert file.read_text() == "mine"
    with pytest.raises(NotFound):
        write_backup(tmp_path / "nothing", tmp_path / "b")


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"files": {}},
        {"files": {"ca.key": "", "ca.crt": "", "holder.json": "", "../../etc/passwd": "x"}},
        {"files": {"ca.key": "", "ca.crt": "", "holder.json": "", "keys/../x": "x"}},
        {"files": {"ca.key": "", "ca.crt": "", "holder.json": "", "/etc/passwd": "x"}},
    ],
)
def test_what_is_no_backup_is_refused_and_nothing_is_written(
    state: Path, tmp_path: Path, change: dict[str, object]
) -> None:
    file, other = tmp_path / "backup.json", tmp_path / "other"
    write_backup(state, file)
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(UsageError):
        restore_backup(file, other)
    assert not other.exists()
    file.write_text("not json")
    with pytest.raises(UsageError):
        restore_backup(file, other)
    with pytest.raises(NotFound):
        restore_backup(tmp_path / "absent", other)
