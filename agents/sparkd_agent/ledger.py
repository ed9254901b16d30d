"""What the agent must not forget: fences, ranks, and news the coordinator has not acknowledged. SQLite.

    meta         key, value: highest term and instance, last revision, serials of all deployments
    deployment   name, generation (never falls), descriptor, baseline_bytes
    rank         one row per rank ever started here: spec, handle, state (intent, started, exited, gone), exit
    outbox       seq, kind, body: exits and task results until acknowledged

Rows of another boot mean "gone". A ledger of a later version is refused: an old agent must not guess.
"""

import hashlib
import os
import sqlite3
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from sparkd.errors import StateCorrupt, StateTooNew
from sparkd.failpoints import passed
from sparkd.records.defaults import DEFAULTS
from sparkd.records.document import DeploymentSerial, Revision
from sparkd.records.names import parse_rank_name
from sparkd.records.rank import RankSpec
from sparkd.records.report import Exit, LedgerRank, TaskResult
from sparkd_agent.core.state import RowState

VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE deployment (
    name TEXT PRIMARY KEY, generation INTEGER NOT NULL, descriptor BLOB, baseline_bytes INTEGER
) STRICT;
CREATE TABLE rank (
    name TEXT PRIMARY KEY, spec BLOB NOT NULL, hash TEXT NOT NULL, runtime TEXT NOT NULL, handle BLOB,
    pid INTEGER, starttime INTEGER, boot TEXT NOT NULL, state TEXT NOT NULL, exit BLOB
) STRICT;
CREATE TABLE outbox (seq INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, body BLOB NOT NULL) STRICT;
"""
_MIGRATIONS: Final[dict[int, str]] = {0: _SCHEMA}
"""From version N to N+1. A stored ledger of each released version is a test fixture."""


@dataclass(frozen=True, slots=True)
class Fences:
    """What outlives a run of the agent."""

    accepted: Revision
    instance: str
    generations: dict[str, int]
    deployments: tuple[DeploymentSerial, ...]


@dataclass(frozen=True, slots=True)
class OutboxRow:
    seq: int
    exit: Exit | None = None
    result: TaskResult | None = None


def open_ledger(path: Path, boot: str, stamp: str) -> "tuple[Ledger, str | None]":
    """The ledger, and why it is empty if it had to be begun anew: one that cannot be trusted is moved aside.

    Raises StateTooNew for one of a later agent.
    """
    ledger: Ledger | None = None
    try:
        ledger = Ledger(path, boot)
        ledger.read_all()
    except StateTooNew:
        raise
    except StateCorrupt as error:
        if ledger is not None:
            ledger.close()
        for suffix in ("", "-wal", "-shm"):
            part = path.with_name(path.name + suffix)
            if part.exists():
                part.rename(path.with_name(f"{path.name}.corrupt-{stamp}{suffix}"))
        return Ledger(path, boot), f"{error}; it was moved aside"
    return ledger, None


class Ledger:
    """One writer, one connection; every method commits before it returns.

    Raises StateTooNew or StateCorrupt when opened on a file that it cannot trust.
    """

    def __init__(self, path: Path, boot: str) -> None:
        self._boot = boot
        self._nothing_posted = False
        """Known, not only assumed: an idle agent asks each second."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        os.close(descriptor)
        self._db = sqlite3.connect(path, isolation_level=None)
        try:
            self._open(path)
        except sqlite3.DatabaseError as error:
            self._db.close()
            raise StateCorrupt(f"the ledger {path} cannot be read: {error}") from error
        except StateTooNew:
            self._db.close()
            raise

    def _open(self, path: Path) -> None:
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        # Emptied early: on a nearly full disk the journal must not be what takes the last room.
        self._db.execute(f"PRAGMA wal_autocheckpoint={DEFAULTS.journal_pages}")
        version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        if version > VERSION:
            raise StateTooNew(
                f"the ledger {path} has version {version}, this agent knows {VERSION}; "
                "install the newer agent"
            )
        while version < VERSION:
            self._db.executescript(
                f"BEGIN; {_MIGRATIONS[version]} PRAGMA user_version={version + 1}; COMMIT;"
            )
            version += 1

    def close(self) -> None:
        self._db.close()

    # Fences.

    def read_all(self) -> None:
        """Raises StateCorrupt when anything in it cannot be read or understood."""
        try:
            self.fences()
            self.ranks()
            self.outbox()
        except (sqlite3.DatabaseError, msgspec.MsgspecError, ValueError) as error:
            raise StateCorrupt(f"the ledger cannot be read: {error}") from error

    def fences(self) -> Fences:
        values = dict(self._db.execute("SELECT key, value FROM meta").fetchall())
        return Fences(
            accepted=Revision(int(values.get("term", 0)), int(values.get("revision", 0))),
            instance=values.get("instance", ""),
            generations=dict(self._db.execute("SELECT name, generation FROM deployment").fetchall()),
            deployments=msgspec.json.decode(
                values.get("deployments", "[]"), type=tuple[DeploymentSerial, ...]
            ),
        )

    def save_fences(self, fences: Fences) -> None:
        rows = {
            "term": str(fences.accepted.term),
            "revision": str(fences.accepted.revision),
            "instance": fences.instance,
            "deployments": msgspec.json.encode(fences.deployments).decode(),
        }
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", rows.items())
            self._db.executemany(
                "INSERT INTO deployment (name, generation) VALUES (?, ?) ON CONFLICT (name) DO UPDATE"
                " SET generation = max(generation, excluded.generation)",
                fences.generations.items(),
            )
            passed("agent.1-fences")
        passed("agent.2-fences-saved")

    # Ranks.

    def intend(self, spec: RankSpec, baseline_bytes: int | None = None) -> None:
        """Before anything of the rank exists. Secrets are left out: they come again with a document.

        `baseline_bytes` is the node's MemAvailable while no rank existed.
        """
        body = msgspec.json.encode(replace(spec, secrets={}))
        digest = hashlib.sha256(body).hexdigest()
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute(
                "INSERT OR REPLACE INTO rank (name, spec, hash, runtime, boot, state)"
                " VALUES (?, ?, ?, ?, ?, 'intent')",
                (spec.name, body, digest, spec.runtime, self._boot),
            )
            # The generation again, with the intent: the fences of its document may not have been written.
            self._db.execute(
                "INSERT INTO deployment (name, generation, descriptor, baseline_bytes) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (name) DO UPDATE SET generation = max(generation, excluded.generation),"
                " descriptor = excluded.descriptor, baseline_bytes = excluded.baseline_bytes",
                (spec.deployment, spec.generation, msgspec.json.encode(spec.descriptor), baseline_bytes),
            )
            passed("agent.3-intent")
        passed("agent.4-intent-committed")

    def baseline_bytes(self) -> int | None:
        """What was noted with the newest rank of this boot; None after a reboot."""
        query = (
            "SELECT baseline_bytes FROM rank JOIN deployment ON deployment.name = spec ->> '$.deployment'"
            " WHERE boot = ? ORDER BY rank.rowid DESC LIMIT 1"
        )
        row = self._db.execute(query, (self._boot,)).fetchone()
        return None if row is None else row[0]

    def started(self, name: str, pid: int | None, starttime: int | None) -> None:
        passed("agent.9-started")
        self._db.execute(
            "UPDATE rank SET state = 'started', pid = ?, starttime = ? WHERE name = ?", (pid, starttime, name)
        )
        passed("agent.10-started-committed")

    def ended(self, name: str, state: RowState, exit_: Exit | None) -> None:
        body = msgspec.json.encode(exit_) if exit_ else None
        passed("agent.16-end")
        self._db.execute(
            "UPDATE rank SET state = ?, exit = coalesce(?, exit) WHERE name = ?", (state, body, name)
        )
        passed("agent.17-end-committed")

    def ranks(self) -> tuple[LedgerRank, ...]:
        """All rows; those of another boot are `gone`."""
        rows = self._db.execute("SELECT spec, state, boot FROM rank ORDER BY rowid").fetchall()
        return tuple(
            LedgerRank(msgspec.json.decode(spec, type=RankSpec), state if boot == self._boot else "gone")
            for spec, state, boot in rows
        )

    def unfinished(self) -> frozenset[str]:
        """Names whose end nobody has written down, of this boot or an earlier one."""
        return frozenset(name for (name,) in self._db.execute("SELECT name FROM rank WHERE state <> 'gone'"))

    def prune(self, keep: int) -> tuple[str, ...]:
        """Drop all but the newest `keep` gone ranks of each deployment; gives the names dropped."""
        by_deployment: dict[str, list[str]] = {}
        query = "SELECT name FROM rank WHERE state = 'gone' OR boot <> ? ORDER BY rowid DESC"
        for (name,) in self._db.execute(query, (self._boot,)).fetchall():
            parsed = parse_rank_name(name)
            by_deployment.setdefault(parsed.deployment if parsed else "", []).append(name)
        dropped = tuple(name for names in by_deployment.values() for name in names[keep:])
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("DELETE FROM rank WHERE name = ?", ((name,) for name in dropped))
            passed("agent.20-prune")
        passed("agent.21-pruned")
        return dropped

    # Outbox.

    def post(self, item: Exit | TaskResult) -> int:
        """Keep a piece of news until it is acknowledged; gives its place in the outbox."""
        kind = "exit" if isinstance(item, Exit) else "result"
        passed("agent.14-post")
        self._nothing_posted = False
        cursor = self._db.execute(
            "INSERT INTO outbox (kind, body) VALUES (?, ?)", (kind, msgspec.json.encode(item))
        )
        passed("agent.15-posted")
        return int(cursor.lastrowid or 0)

    def outbox(self, limit: int = DEFAULTS.outbox_batch) -> tuple[OutboxRow, ...]:
        if self._nothing_posted:
            return ()
        rows = self._db.execute(
            "SELECT seq, kind, body FROM outbox ORDER BY seq LIMIT ?", (limit,)
        ).fetchall()
        self._nothing_posted = not rows
        return tuple(
            OutboxRow(seq, exit=msgspec.json.decode(body, type=Exit))
            if kind == "exit"
            else OutboxRow(seq, result=msgspec.json.decode(body, type=TaskResult))
            for seq, kind, body in rows
        )

    def acknowledge(self, seqs: tuple[int, ...]) -> None:
        if seqs:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                self._db.executemany("DELETE FROM outbox WHERE seq = ?", ((seq,) for seq in seqs))
                passed("agent.18-acknowledge")
            passed("agent.19-acknowledged")
