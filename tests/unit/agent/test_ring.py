"""What a node's next boot learns of an end that nobody announced."""

from pathlib import Path

from sparkd.diagnosis.timeline import completed
from sparkd.records.defaults import DEFAULTS, GIB
from sparkd.records.incident import Entry
from sparkd.records.memory import Memory
from sparkd.records.report import Sample
from sparkd.records.verdict import Severity, Verdict
from sparkd_agent.ring import Ring, Seen

THRASH = Verdict("UVM_THRASH", Severity.BLOCK, "about to freeze")
NVRM = "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY]"


def seen(at: float, available: float = 20.0, *, kernel: tuple[str, ...] = (), bad: bool = False) -> Seen:
    memory = Memory(122 * GIB, int(available * GIB), GIB)
    return Seen(at, "sparkd-d-g1-r0", Sample(memory, verdicts=(THRASH,) if bad else ()), kernel)


def test_a_freeze_is_told_with_the_last_look(tmp_path: Path) -> None:
    before = Ring(tmp_path, "boot-1")
    before.keep([seen(100.0), seen(101.0, 0.8, kernel=(NVRM,), bad=True)])
    told = Ring(tmp_path, "boot-2").before
    assert told is not None
    assert told.id == "UNCLEAN_END"
    assert "sparkd-d-g1-r0" in told.title
    for part in ("0.8 GiB", "UVM_THRASH", "NV_ERR_NO_MEMORY"):
        assert part in told.evidence


def test_the_next_boot_can_tell_the_last_looks(tmp_path: Path) -> None:
    Ring(tmp_path, "boot-1").keep([seen(100.0), seen(101.0, 0.8, kernel=(NVRM,), bad=True)])
    records = Ring(tmp_path, "boot-2").records()
    assert [record["at"] for record in records] == [100.0, 101.0]
    known = (Entry(100.0, "sample", "MemAvailable 20.0 GiB", "spark-2"), Entry(103.0, "event", "it is lost"))
    whole = completed(known, "spark-2", records, offset_s=0.5)
    assert [(one.at, one.kind) for one in whole] == [
        (100.0, "sample"),
        (100.5, "sample"),
        (101.5, "sample"),
        (101.5, "kernel"),
        (103.0, "event"),
    ]
    assert "UVM_THRASH" in whole[2].text


def test_the_same_boot_is_no_end(tmp_path: Path) -> None:
    Ring(tmp_path, "boot-1").keep([seen(100.0)])
    assert Ring(tmp_path, "boot-1").before is None


def test_an_end_in_good_order_is_not_told(tmp_path: Path) -> None:
    ring = Ring(tmp_path, "boot-1")
    ring.keep([seen(100.0)])
    ring.ended_well()
    assert Ring(tmp_path, "boot-2").before is None


def test_a_rank_that_came_after_a_good_end_counts_again(tmp_path: Path) -> None:
    ring = Ring(tmp_path, "boot-1")
    ring.ended_well()
    ring.keep([seen(100.0)])
    assert Ring(tmp_path, "boot-2").before is not None


def test_an_end_is_not_told_again_once_a_later_boot_ended_well(tmp_path: Path) -> None:
    Ring(tmp_path, "boot-1").keep([seen(100.0)])
    idle = Ring(tmp_path, "boot-2")
    assert idle.before is not None
    assert Ring(tmp_path, "boot-2").before is not None, "the same boot is asked again"
    idle.ended_well()
    assert Ring(tmp_path, "boot-3").before is None


def test_boots_without_a_rank_leave_nothing(tmp_path: Path) -> None:
    for number in range(5):
        Ring(tmp_path, f"boot-{number}").ended_well()
    assert [path.name for path in tmp_path.iterdir()] == ["boot-4.clean"]


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    Ring(tmp_path, "boot-1").keep([seen(100.0)])
    (segment,) = tmp_path.glob("boot-1-*.jsonl")
    segment.write_bytes(segment.read_bytes() + b'{"at":101.0,"ra')
    told = Ring(tmp_path, "boot-2").before
    assert told is not None
    assert "100" in told.evidence


def test_it_is_bounded_and_older_boots_are_forgotten(tmp_path: Path) -> None:
    Ring(tmp_path, "boot-0").keep([seen(1.0)])
    ring = Ring(tmp_path, "boot-1")
    line = "x" * 10_000
    for at in range(12):
        ring.keep([seen(float(at), kernel=(line,) * 50)])
    size = sum(path.stat().st_size for path in tmp_path.glob("boot-1-*"))
    assert size <= (DEFAULTS.ring_segments + 1) * DEFAULTS.ring_segment_bytes
    Ring(tmp_path, "boot-2")
    assert not list(tmp_path.glob("boot-0-*"))


def test_a_disk_that_takes_nothing_keeps_nothing_from_running(tmp_path: Path) -> None:
    (tmp_path / "blackbox").write_text("a file in its place")
    ring = Ring(tmp_path / "blackbox", "boot-1")
    ring.keep([seen(100.0)])
    ring.ended_well()
    assert ring.before is None
