import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from sparkd.errors import StateCorrupt, StateTooNew
from sparkd.records.document import DeploymentSerial, Revision
from sparkd.records.intent import Descriptor, Intent
from sparkd.records.rank import Address, RankSpec
from sparkd.records.report import Exit, TaskResult
from sparkd_agent.ledger import VERSION, Fences, Ledger, open_ledger


def spec(generation: int = 1) -> RankSpec:
    return RankSpec(
        name=f"sparkd-d-g{generation}-r0",
        deployment="d",
        generation=generation,
        rank=0,
        ranks=1,
        runtime="process",
        engine="default",
        args=("serve",),
        env={"A": "1"},
        rendezvous=Address("h", 1),
        descriptor=Descriptor("d", Intent("p", {}), 1, generation, ("n",), 8100),
        secrets={"VLLM_API_KEY": "sk-secret"},
    )


def test_what_was_written_is_there_for_the_next_run(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = Ledger(path, "boot1")
    fences = Fences(Revision(3, 7), "i3", {"d": 4}, (DeploymentSerial("d", 9, "up"),))
    ledger.save_fences(fences)
    ledger.intend(spec())
    ledger.started(spec().name, 12, 345)
    exit_ = Exit(spec().name, "leader", 12, None, 9, "pidfd", 1.0, 2.0)
    ledger.post(exit_)
    ledger.post(TaskResult("t", ok=True, result={"a": 1}))
    ledger.close()

    ledger = Ledger(path, "boot1")
    assert ledger.fences() == fences
    assert [(row.spec, row.state) for row in ledger.ranks()] == [(replace(spec(), secrets={}), "started")]
    rows = ledger.outbox()
    assert [row.exit for row in rows] == [exit_, None]
    ledger.acknowledge(tuple(row.seq for row in rows))
    assert ledger.outbox() == ()
    ledger.close()


def test_no_secret_reaches_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = Ledger(path, "boot1")
    ledger.save_fences(Fences(Revision(1, 1), "i", {"d": 1}, ()))
    ledger.intend(spec())
    ledger.close()
    assert path.stat().st_mode & 0o077 == 0
    for file in tmp_path.iterdir():
        assert b"sk-secret" not in file.read_bytes()


def test_rows_of_another_boot_mean_gone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = Ledger(path, "boot1")
    ledger.intend(spec())
    ledger.started(spec().name, 1, 1)
    ledger.close()
    ledger = Ledger(path, "boot2")
    assert [row.state for row in ledger.ranks()] == ["gone"]
    assert ledger.unfinished() == {spec().name}, "nobody has written down how it ended"
    ledger.close()


def test_generations_never_fall(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l", "b")
    ledger.save_fences(Fences(Revision(1, 1), "i", {"d": 5}, ()))
    ledger.save_fences(Fences(Revision(1, 2), "i", {"d": 3}, ()))
    assert ledger.fences().generations == {"d": 5}
    ledger.close()


def test_old_ranks_are_pruned_and_living_ones_are_not(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l", "b")
    for generation in range(1, 7):
        ledger.intend(spec(generation))
        if generation < 6:
            ledger.ended(spec(generation).name, "gone", None)
    assert set(ledger.prune(3)) == {"sparkd-d-g1-r0", "sparkd-d-g2-r0"}
    assert [row.spec.generation for row in ledger.ranks()] == [3, 4, 5, 6]
    ledger.close()


def test_a_newer_ledger_is_refused_with_a_word(tmp_path: Path) -> None:
    path = tmp_path / "l"
    Ledger(path, "b").close()
    database = sqlite3.connect(path)
    database.execute(f"PRAGMA user_version={VERSION + 1}")
    database.close()
    with pytest.raises(StateTooNew, match="install the newer agent"):
        Ledger(path, "b")


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "l"
    path.write_bytes(b"this is no database at all, but it is long enough to be looked at" * 20)
    with pytest.raises(StateCorrupt, match=str(path)):
        Ledger(path, "b")


def test_a_ledger_that_cannot_be_trusted_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(b"no database" * 1000)
    ledger, lost = open_ledger(path, "b", "stamp")
    assert lost is not None
    assert ledger.ranks() == ()
    ledger.close()
    assert (tmp_path / "ledger.sqlite.corrupt-stamp").read_bytes() == b"no database" * 1000
