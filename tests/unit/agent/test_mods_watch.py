"""When an agent says that a required mod is missing, and when it cannot know."""

import json
from pathlib import Path

from sparkd.engine.plugin import ModRequest
from sparkd_agent.logs import RankLog
from sparkd_agent.mods_watch import ModsWatch

WORKER = (("VLLM::Worker_TP0", 7),)
APPLIED = "sparkd-mod " + json.dumps({"pid": 7, "mod": "m", "state": "applied"})


def log(folder: Path, lines: list[str], begin: int = 0) -> RankLog:
    folder.mkdir()
    stamped = "".join(f"1 2 2 {line}\n" for line in lines)
    (folder / f"{begin:020}").write_text(stamped)
    return RankLog(folder)


def test_what_was_read_as_it_came_is_enough(tmp_path: Path) -> None:
    watch = ModsWatch([ModRequest("m")], log(tmp_path / "log", []))
    assert not watch.judge((), 0.0)  # its processes are not known yet
    watch.read(["INFO something", APPLIED])
    assert not watch.judge(WORKER, 9.0)
    assert watch.missing is None


def test_a_worker_that_is_seen_late_is_waited_for(tmp_path: Path) -> None:
    """Otherwise the engine, which does not load the model itself, would be taken for its holder."""
    watch = ModsWatch([ModRequest("m")], log(tmp_path / "log", [APPLIED]))
    assert not watch.judge((("VLLM::EngineCore", 6),), 10.0)
    assert not watch.judge(WORKER, 11.0)
    assert not watch.judge(WORKER, 16.0)
    assert watch.missing is None


def test_a_line_that_was_skipped_in_a_flood_is_found_in_the_whole_log(tmp_path: Path) -> None:
    watch = ModsWatch([ModRequest("m")], log(tmp_path / "log", ["x" * 100] * 20_000 + [APPLIED, "more"]))
    watch.read(["more"])
    assert not watch.judge(WORKER, 0.0)
    assert not watch.judge(WORKER, 9.0)
    assert watch.missing is None


def test_a_process_that_told_nothing_is_bad_news_once(tmp_path: Path) -> None:
    watch = ModsWatch([ModRequest("m")], log(tmp_path / "log", ["INFO something"]))
    assert not watch.judge(WORKER, 0.0)
    assert watch.judge(WORKER, 9.0)
    assert watch.missing is not None
    assert "VLLM::Worker_TP0 (pid 7)" in watch.missing
    assert not watch.judge(WORKER, 10.0)


def test_a_log_without_its_beginning_says_nothing_against_a_rank(tmp_path: Path) -> None:
    watch = ModsWatch([ModRequest("m")], log(tmp_path / "log", ["INFO something"], begin=4096))
    assert not watch.judge(WORKER, 0.0)
    assert not watch.judge(WORKER, 9.0)
    assert watch.missing is None


def test_mods_that_are_not_required_are_not_watched(tmp_path: Path) -> None:
    watch = ModsWatch([ModRequest("m", required=False)], log(tmp_path / "log", []))
    assert not watch.judge(WORKER, 0.0)
    assert not watch.judge(WORKER, 9.0)
