"""The lines of the collective probe, as its own program writes them, and its words."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from sparkd.engine.collective import LINE_PREFIX, PROBE_MODULE, RUNGS_MOST, probe_words, read_collective
from sparkd.engine.plugin import known_mods, plugin_folder
from sparkd.records.collective import CollectiveReport, Step

NOTHING = CollectiveReport()


def program() -> ModuleType:
    """The probe itself; it imports torch only when it runs."""
    path = plugin_folder() / f"{PROBE_MODULE.replace('.', '/')}.py"
    spec = importlib.util.spec_from_file_location("fabric_probe", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def line(**said: object) -> str:
    return LINE_PREFIX + json.dumps(said)


def test_the_program_and_its_reader_speak_of_the_same() -> None:
    there = program()
    assert there.LINE_PREFIX == LINE_PREFIX
    words = probe_words(1, 2, "fd00::1", 29601, most_bytes=1 << 26, ladder_s=5.0, within_s=60.0)
    args = there.read(list(words))
    assert (args.rank, args.ranks, args.host, args.port) == (1, 2, "fd00::1", 29601)
    assert (args.most, args.ladder, args.within) == (1 << 26, 5.0, 60.0)


def test_it_is_no_mod() -> None:
    assert "fabric-probe" not in known_mods()
    assert (plugin_folder() / "sparkd_mods" / "fabric_probe.py").is_file()


@pytest.mark.parametrize(
    ("most", "rungs"),
    [
        (8, [8]),
        (100, [8, 64, 100]),
        (512, [8, 64, 512]),
        (256 << 20, [8, 64, 512, 4096, 32768, 262144, 2 << 20, 16 << 20, 128 << 20, 256 << 20]),
    ],
)
def test_the_ladder(most: int, rungs: list[int]) -> None:
    assert program().ladder(most) == rungs


def test_the_memory_that_is_available(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    assert program().available_bytes(meminfo) is None
    meminfo.write_text("MemTotal:       126000000 kB\nMemFree:  100 kB\nMemAvailable:   31457280 kB\n")
    assert program().available_bytes(meminfo) == 30 << 30
    meminfo.write_text("MemAvailable:")
    assert program().available_bytes(meminfo) is None


def test_what_is_read() -> None:
    told = read_collective(
        [
            "NCCL INFO something else",
            line(stage="imported", backend="nccl", versions={"torch": "2.11.0", "nccl": "2.28.9"}),
            line(stage="met"),
            line(bytes=8, seconds=4e-5),
            "noise before it " + line(stage="done"),
        ],
        NOTHING,
    )
    assert (told.stage, told.backend, told.versions["nccl"]) == ("done", "nccl", "2.28.9")
    assert told.steps == (Step(8, 4e-5),)
    assert read_collective([line(stage="met")], told).stage == "done", "it never goes back"


@pytest.mark.parametrize(
    "text",
    [
        LINE_PREFIX + "{",
        LINE_PREFIX + "[]",
        line(stage="elsewhere"),
        line(bytes="many", seconds=1),
        line(bytes=-8, seconds=1),
        line(bytes=8, seconds=0),
    ],
)
def test_what_is_not_understood_says_nothing(text: str) -> None:
    assert read_collective([text], NOTHING) == NOTHING


def test_a_flood_is_bounded_and_the_first_reason_stays() -> None:
    told = read_collective([line(bytes=8, seconds=1.0)] * 1000, NOTHING)
    assert len(told.steps) == RUNGS_MOST
    told = read_collective([line(error="first"), line(error="second"), line(unable="u")], NOTHING)
    assert (told.error, told.unable) == ("first", "u")
