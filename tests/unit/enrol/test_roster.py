from pathlib import Path

import pytest

from sparkd.enrol.roster import LiveRoster, Roster, enrol_node, read_roster, revoke_node
from sparkd.errors import Conflict, NotFound, StateCorrupt, UsageError


def test_the_holder_is_minted_once(tmp_path: Path) -> None:
    holder = read_roster(tmp_path).holder
    enrol_node(tmp_path, "a1", "spark-a")
    assert read_roster(tmp_path).holder == holder
    assert read_roster(tmp_path / "other").holder != holder


def test_nodes_come_and_go_and_their_ids_never_return(tmp_path: Path) -> None:
    enrol_node(tmp_path, "a1", "spark-a")
    enrol_node(tmp_path, "b1", "spark-b")
    revoke_node(tmp_path, "a1", at=5.0)
    roster = read_roster(tmp_path)
    assert roster.names == {"b1": "spark-b"}
    assert roster.is_revoked("a1")
    assert not roster.is_revoked("b1")
    with pytest.raises(Conflict, match="was removed"):
        enrol_node(tmp_path, "a1", "spark-a")
    assert enrol_node(tmp_path, "a2", "spark-a").names["a2"] == "spark-a"


def test_enrolling_again_renames() -> None:
    assert Roster("h").with_node("a", "x").with_node("a", "y").names == {"a": "y"}


def test_one_name_is_one_node() -> None:
    with pytest.raises(Conflict, match="spark-a is enrolled already"):
        Roster("h").with_node("a", "spark-a").with_node("b", "spark-a")


@pytest.mark.parametrize("bad", ["", "a/b", "../x", "a b", "a\n", "é", "-a", "x" * 65])
def test_an_id_fits_into_a_uri(bad: str) -> None:
    with pytest.raises(UsageError):
        Roster("h").with_node(bad, "name")


def test_nobody_is_removed_twice() -> None:
    with pytest.raises(NotFound):
        Roster("h").with_node("a", "x").without_node("a", 1.0).without_node("a", 2.0)


def test_the_file_of_earlier_versions_is_read(tmp_path: Path) -> None:
    (tmp_path / "holder.json").write_text('{"holder": "h1", "nodes": [{"id": "a", "name": "n"}]}')
    assert read_roster(tmp_path) == Roster("h1").with_node("a", "n")


def test_a_broken_file_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "holder.json").write_text('{"holder": ')
    with pytest.raises(StateCorrupt):
        read_roster(tmp_path)
    with pytest.raises(StateCorrupt):
        enrol_node(tmp_path, "a", "n")
    assert (tmp_path / "holder.json").read_text() == '{"holder": '


def test_a_list_that_is_lost_is_not_begun_anew(tmp_path: Path) -> None:
    """Its nodes obey the holder that it named, and would take a new one for a stranger."""
    enrol_node(tmp_path, "a", "n")
    (tmp_path / "ca.key").touch()
    (tmp_path / "holder.json").unlink()
    with pytest.raises(StateCorrupt, match=r"holder\.json is missing beside ca\.key"):
        read_roster(tmp_path)
    assert not (tmp_path / "holder.json").exists()


def test_the_living_list_follows_the_file(tmp_path: Path) -> None:
    enrol_node(tmp_path, "a", "n")
    live = LiveRoster(tmp_path)
    enrol_node(tmp_path, "b", "m")
    assert set(live.now.names) == {"a", "b"}
    (tmp_path / "holder.json").unlink()
    with pytest.raises(StateCorrupt, match="cannot be read"):
        _ = live.now
