"""The coordinator's database: what must survive it. SQLite, one writer, every commit durable.

life         term, instance: every start, and every higher term that was taken while running
drained      node ids that get no new rank
deployment   name, body (GangRecord as JSON)
event        id (`term-seq`), body
incident     deployment, generation, body; what is learnt later replaces what was written at the fall
"""

import os
import sqlite3
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from sparkd.errors import StateCorrupt, StateTooNew
from sparkd.failpoints import passed
from sparkd.gang.record import GangRecord
from sparkd.records.defaults import DEFAULTS
from sparkd.records.event import Event
from sparkd.records.incident import Incident

VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE life (term INTEGER PRIMARY KEY, instance TEXT NOT NULL) STRICT;
CREATE TABLE drained (node TEXT PRIMARY KEY) STRICT;
CREATE TABLE deployment (name TEXT PRIMARY KEY, body BLOB NOT NULL) STRICT;
CREATE TABLE event (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, body BLOB NOT NULL) STRICT;
CREATE TABLE incident (
    deployment TEXT NOT NULL, generation INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (deployment, generation)
) STRICT;
"""
_MIGRATIONS: Final[dict[int, str]] = {0: _SCHEMA}


@dataclass(frozen=True, slots=True)
class Changes:
    """One transaction: all of it becomes durable, or nothing."""

    records: tuple[GangRecord, ...] = ()
    events: tuple[Event, ...] = ()
    incidents: tuple[tuple[str, int, Incident], ...] = ()
    life: tuple[int, str] | None = None
    """A higher term that this instance took while it ran."""
    drained: frozenset[str] | None = None

    def __bool__(self) -> bool:
        return self != Changes()


class Store:
    """Raises StateTooNew or StateCorrupt when opened on a file that it cannot trust."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        self._db = sqlite3.connect(path, isolation_level=None)
        try:
            self._open(path)
        except sqlite3.DatabaseError as error:
            self._db.close()
            raise StateCorrupt(f"the database {path} cannot be read: {error}") from error
        except StateTooNew:
            self._db.close()
            raise

    def _open(self, path: Path) -> None:
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        # Emptied early: on a nearly full disk the journal must not be what takes the last room.
        self._db.execute(f"PRAGMA wal_autocheckpoint={DEFAULTS.journal_pages}")
        if self._db.execute("PRAGMA quick_check").fetchone()[0] != "ok":
            raise sqlite3.DatabaseError("its pages are damaged")
        version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        if version > VERSION:
            raise StateTooNew(f"the database {path} has version {version}, this sparkd knows {VERSION}")
        while version < VERSION:
            script = f"BEGIN; {_MIGRATIONS[version]} PRAGMA user_version={version + 1}; COMMIT;"
            self._db.executescript(script)
            version += 1

    def close(self) -> None:
        self._db.close()

    def take_term(self, instance: str) -> int:
        """Begin a new life: one more than every term before, durable before anything carries it."""
        row = self._db.execute("SELECT max(term) FROM life").fetchone()
        term = int(row[0] or 0) + 1
        passed("coordinator.1-term")
        self._db.execute("INSERT INTO life (term, instance) VALUES (?, ?)", (term, instance))
        passed("coordinator.2-term-taken")
        return term

    def lives(self) -> frozenset[tuple[int, str]]:
        """(term, instance) of every life; a hello that names another one shows that this database is old."""
        rows = self._db.execute("SELECT term, instance FROM life").fetchall()
        return frozenset((int(term), str(instance)) for term, instance in rows)

    def drained(self) -> frozenset[str]:
        return frozenset(node for (node,) in self._db.execute("SELECT node FROM drained").fetchall())

    def read_all(self) -> None:
        """Raises StateCorrupt when anything in it cannot be read or understood."""
        try:
            self.records()
            self.events()
            self.lives()
            self.drained()
        except (sqlite3.DatabaseError, msgspec.MsgspecError) as error:
            raise StateCorrupt(f"the database cannot be read: {error}") from error

    def records(self) -> tuple[GangRecord, ...]:
        """Raises StateCorrupt for a row that cannot be understood."""
        rows = self._db.execute("SELECT name, body FROM deployment ORDER BY name").fetchall()
        try:
            return tuple(msgspec.json.decode(body, type=GangRecord) for _, body in rows)
        except msgspec.MsgspecError as error:
            raise StateCorrupt(f"a deployment in the database cannot be understood: {error}") from error

    def commit(self, changes: Changes) -> None:
        """Raises sqlite3.Error, and has then changed nothing."""
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            if changes.life is not None:
                self._db.execute("INSERT OR REPLACE INTO life (term, instance) VALUES (?, ?)", changes.life)
            if changes.drained is not None:
                self._db.execute("DELETE FROM drained")
                rows = ((node,) for node in changes.drained)
                self._db.executemany("INSERT INTO drained (node) VALUES (?)", rows)
            self._db.executemany(
                "INSERT OR REPLACE INTO deployment (name, body) VALUES (?, ?)",
                ((record.name, msgspec.json.encode(_without_secrets(record))) for record in changes.records),
            )
            self._db.executemany(
                "INSERT INTO event (id, body) VALUES (?, ?)",
                ((event.id, msgspec.json.encode(event)) for event in changes.events),
            )
            if changes.events:
                self.prune_events()
            self._db.executemany(
                "INSERT OR REPLACE INTO incident (deployment, generation, body) VALUES (?, ?, ?)",
                (
                    (name, generation, msgspec.json.encode(body))
                    for name, generation, body in changes.incidents
                ),
            )
            passed("coordinator.3-commit")
        passed("coordinator.4-committed")
        if any(record.phase == "launching" for record in changes.records):
            passed("coordinator.5-launch-committed")

    def check(self) -> None:
        """Write what is there already. Raises sqlite3.Error while the disk takes nothing."""
        self._db.execute(f"PRAGMA user_version={VERSION}")

    def events(self, limit: int = DEFAULTS.events_kept) -> tuple[Event, ...]:
        """The last ones, oldest first."""
        rows = self._db.execute("SELECT body FROM event ORDER BY number DESC LIMIT ?", (limit,)).fetchall()
        return tuple(msgspec.json.decode(body, type=Event) for (body,) in reversed(rows))

    def prune_events(self, keep: int = DEFAULTS.events_kept) -> None:
        self._db.execute("DELETE FROM event WHERE number <= (SELECT max(number) FROM event) - ?", (keep,))

    def incidents(self, deployment: str) -> list[dict[str, Any]]:
        """Newest first."""
        query = "SELECT body FROM incident WHERE deployment = ? ORDER BY generation DESC LIMIT 100"
        return [msgspec.json.decode(body) for (body,) in self._db.execute(query, (deployment,)).fetchall()]


def open_store(path: Path, stamp: str) -> tuple[Store, str | None]:
    """The database, and why it is empty if it had to be begun anew.

    One that cannot be trusted is moved aside under `stamp`, never overwritten: a coordinator without it fills
    itself again from the agents (`fleet.amnesia`). Raises StateTooNew for one of a later sparkd.
    """
    store: Store | None = None
    try:
        store = Store(path)
        store.read_all()
    except StateTooNew:
        raise
    except StateCorrupt as error:
        if store is not None:
            store.close()
        aside = path.with_name(f"{path.name}.corrupt-{stamp}")
        for suffix in ("", "-wal", "-shm"):
            part = path.with_name(path.name + suffix)
            if part.exists():
                part.rename(aside.with_name(aside.name + suffix))
        return Store(path), f"{error}; it lies in {aside} now, and the agents are asked what they remember"
    return store, None


def _without_secrets(record: GangRecord) -> GangRecord:
    return replace(record, specs=tuple(replace(spec, secrets={}) for spec in record.specs))
