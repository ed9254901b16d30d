import os
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from sparkd.coordinator.store import VERSION, Changes, Store, open_store
from sparkd.errors import StateCorrupt, StateTooNew
from sparkd.gang.record import GangRecord
from sparkd.records.event import Event
from sparkd.records.intent import Descriptor, Intent
from sparkd.records.rank import Address, RankSpec

INTENT = Intent("tiny", {"layout": {"tp": 1}})
SPEC = RankSpec(
    name="sparkd-d-g1-r0",
    deployment="d",
    generation=1,
    rank=0,
    ranks=1,
    runtime="process",
    engine="default",
    args=("serve", "/models/a b"),
    env={},
    rendezvous=Address("h", 1),
    descriptor=Descriptor("d", INTENT, 1, 1, ("n",), 8100),
    secrets={"VLLM_API_KEY": "sk-secret"},
)


def test_terms_grow_over_lives(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    for life in range(1, 4):
        store = Store(path)
        assert store.take_term(f"i{life}") == life
        store.close()


def test_a_record_comes_back_without_its_secrets(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    store = Store(path)
    record = GangRecord("d", INTENT, generation=1, specs=(SPEC,), nodes=("n",))
    store.commit(Changes(records=(record,)))
    store.close()
    store = Store(path)
    assert store.records() == (replace(record, specs=(replace(SPEC, secrets={}),)),)
    store.close()
    assert all(b"sk-secret" not in file.read_bytes() for file in tmp_path.iterdir())


def test_a_failed_commit_changes_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "c.sqlite")
    store.commit(Changes(records=(GangRecord("d", INTENT, serial=1),)))
    store._db.execute(
        "CREATE TRIGGER no_events BEFORE INSERT ON event BEGIN SELECT RAISE(ABORT, 'full'); END"
    )
    event = Event("1-1", 0.0, "phase", "why")
    with pytest.raises(sqlite3.Error):
        store.commit(Changes(records=(GangRecord("d", INTENT, serial=2),), events=(event,)))
    assert [record.serial for record in store.records()] == [1]
    store.close()


def test_events_and_incidents_in_order(tmp_path: Path) -> None:
    store = Store(tmp_path / "c.sqlite")
    events = tuple(Event(f"1-{n}", float(n), "phase", "why", from_="a", to="b") for n in range(1, 6))
    store.commit(Changes(events=events))
    assert store.events(3) == events[2:]
    store.prune_events(2)
    assert store.events() == events[3:]
    store.commit(Changes(incidents=(("d", 1, {"n": 1}), ("d", 2, {"n": 2}))))
    store.commit(Changes(incidents=(("d", 1, {"n": 11}),)))
    assert store.incidents("d") == [{"n": 2}, {"n": 11}], "what is learnt later replaces"
    assert store.incidents("other") == []
    store.close()


def test_untrustworthy_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    Store(path).close()
    database = sqlite3.connect(path)
    database.execute(f"PRAGMA user_version={VERSION + 1}")
    database.close()
    with pytest.raises(StateTooNew):
        Store(path)
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(StateCorrupt, match="cannot be read"):
        Store(path)


@pytest.mark.parametrize("damage", ["no database", "a table is gone", "a row is nonsense", "pages"])
def test_what_cannot_be_trusted_is_moved_aside_and_never_overwritten(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "c.sqlite"
    store = Store(path)
    store.take_term("i1")
    store.commit(Changes(records=(GangRecord("d", INTENT),)))
    store.close()
    if damage == "no database":
        path.write_bytes(b"no database" * 1000)
    elif damage == "pages":
        whole = path.read_bytes()
        path.write_bytes(whole[:4096] + os.urandom(len(whole) - 4096))
    else:
        database = sqlite3.connect(path)
        statement = "DROP TABLE life" if damage == "a table is gone" else "UPDATE deployment SET body = x'00'"
        database.execute(statement)
        database.commit()
        database.close()
    before = path.read_bytes()
    store, lost = open_store(path, "stamp")
    assert lost is not None
    assert "stamp" in lost
    assert store.records() == ()
    assert store.take_term("i2") == 1
    store.close()
    assert (tmp_path / "c.sqlite.corrupt-stamp").read_bytes() == before


def test_a_whole_database_is_opened_as_it_is(tmp_path: Path) -> None:
    store, lost = open_store(tmp_path / "c.sqlite", "stamp")
    assert lost is None
    store.close()
