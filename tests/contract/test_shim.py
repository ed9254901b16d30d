"""The shim with real processes: what it keeps of a rank, and what it never does to one."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkd.errors import RankNotStarted
from sparkd.records.defaults import DEFAULTS
from sparkd_agent.logs import RankLog
from sparkd_agent.procfs import ProcFs
from sparkd_agent.rankfolder import RankFolder
from sparkd_agent.runtime.base import Launch
from sparkd_agent.runtime.handover import SHIM, shim_spec
from tests.bed.ranks import by_systemd, rank_bed, rank_spec, until

AGENTS = Path(__file__).parents[2] / "agents"
NAME = f"sparkd-s{os.getpid()}-g1-r0"
PROC = ProcFs()
MIB = 1 << 20


@pytest.fixture
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, of the size asked for."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={request.param}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small disk needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)


def disk_use(folder: Path) -> int:
    total = 0
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # rotated away
            total += path.stat().st_blocks * 512
    return total


def status_bytes(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise AssertionError(field)


def test_a_rank_goes_before_everything_else_when_memory_runs_out(tmp_path: Path) -> None:
    async def test() -> None:
        async with rank_bed(tmp_path) as bed:
            rank = await bed.start(NAME, "wait")
            await rank.says("ready")  # its pid is known before it has done what comes before its program
            assert Path(f"/proc/{rank.leader}/oom_score_adj").read_text() == "800\n"

    asyncio.run(test())


def test_the_rank_has_its_own_environment_and_secrets_are_in_no_argv(tmp_path: Path) -> None:
    async def test() -> None:
        async with rank_bed(tmp_path) as bed:
            rank = await bed.start(NAME, "wait", env={"FROM_PROFILE": "a $b 'c'"}, secrets={"KEY": "s3cret"})
            await rank.says("ready")
            raw = Path(f"/proc/{rank.leader}/environ").read_bytes().split(b"\0")
            assert set(raw) - {b""} == {
                b"PATH=/usr/bin:/bin",
                b"FROM_PROFILE=a $b 'c'",
                b"KEY=s3cret",
                f"PYTHONPATH={AGENTS}".encode(),
                f"SPARKD_RANK={NAME}".encode(),
                f"SPARKD_RANK_FOLDER={rank.folder.path}".encode(),
            }
            of_shim = Path(f"/proc/{rank.shim}/environ").read_bytes()
            assert b"s3cret" not in of_shim if by_systemd() else of_shim == b""
            assert PROC.cmdline(rank.shim)[-1] == NAME
            for pid in (rank.shim, rank.leader):
                assert "s3cret" not in PROC.title(pid)
            assert not [
                path for path in tmp_path.rglob("*") if path.is_file() and b"s3cret" in path.read_bytes()
            ]
            assert rank.folder.path.stat().st_mode & 0o777 == 0o700

    asyncio.run(test())


def test_no_core_is_dumped_to_a_file_or_to_a_handler(tmp_path: Path) -> None:
    """A limit of exactly 1 means: nothing behind a pipe either (do_coredump in fs/coredump.c)."""

    async def test() -> None:
        async with rank_bed(tmp_path) as bed:
            rank = await bed.start(NAME, "wait")
            await rank.says("ready")
            limits = Path(f"/proc/{rank.leader}/limits").read_text()
            (line,) = [line for line in limits.splitlines() if line.startswith("Max core file size")]
            assert line.split()[4:6] == ["1", "1"]

    asyncio.run(test())


def test_sessions_and_descriptors(tmp_path: Path) -> None:
    async def test() -> None:
        async with rank_bed(tmp_path) as bed:
            rank = await bed.start(NAME, "wait")
            await rank.says("ready")
            leader, shim = PROC.stat(rank.leader), PROC.stat(rank.shim)
            assert leader is not None
            assert shim is not None
            assert (leader.session, shim.session, leader.ppid) == (rank.leader, rank.shim, rank.shim)
            assert sorted(fd.name for fd in Path(f"/proc/{rank.leader}/fd").iterdir()) == ["0", "1", "2"]
            assert PROC.catches(rank.leader, signal.SIGTERM) is False
            ignored = int(
                next(
                    line.split()[1]
                    for line in Path(f"/proc/{rank.leader}/status").read_text().splitlines()
                    if line.startswith("SigIgn")
                ),
                16,
            )
            by_the_shim = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
            assert not any(ignored >> (number - 1) & 1 for number in by_the_shim)

    asyncio.run(test())


@pytest.mark.parametrize(
    "word",
    [
        "a b",
        "it's",
        '"quoted"',
        "$HOME ${HOME} `id`",
        "new\nline",
        "ünïcode 模型",
        "\udcff\udcfe bytes",
        "-x",
        "",
    ],
)
def test_arguments_arrive_byte_for_byte(tmp_path: Path, word: str) -> None:
    async def test() -> None:
        async with rank_bed(tmp_path) as bed:
            rank = await bed.start(NAME, "wait", word)
            await rank.says("ready")
            assert PROC.cmdline(rank.leader)[-2:] == ("wait", word)

    asyncio.run(test())


def test_lines_are_stamped_cut_and_told_apart(tmp_path: Path) -> None:
    async def test() -> None:
        async with rank_bed(tmp_path, log_line_bytes=100) as bed:
            before = time.monotonic(), time.time()
            rank = await bed.start(NAME, "lines", r"one\ntwo\r\n10%\r20%\rlong " + "x" * 200 + r"\n\nno end")
            await rank.gone()
            lines = rank.log.last(100)
            assert [line.text for line in lines if line.stream == "stdout"] == [
                "one",
                "two",
                "10%",
                "20%",
                "long " + "x" * 95 + " [sparkd: 105 bytes of this line were cut]",
                "",
                "no end",
            ]
            assert [line.text for line in lines if line.stream == "stderr"] == ["on stderr"]
            assert all(before[0] <= line.mono <= time.monotonic() for line in lines)
            assert all(before[1] - 1 <= line.wall <= time.time() + 1 for line in lines)

    asyncio.run(test())


def test_a_flood_fills_at_most_the_cap_and_offsets_keep_their_meaning(tmp_path: Path) -> None:
    megabytes, segment = 200, MIB

    async def test() -> None:
        async with rank_bed(tmp_path, log_segment_bytes=segment, log_segments=4) as bed:
            rank = await bed.start(NAME, "floods", str(megabytes))
            offset = read = skipped = highest = 0
            while not rank.task.done():
                part = rank.log.follow(offset, 256 * 1024)
                offset, read, skipped = part.next_offset, read + len(part.data), skipped + part.skipped_bytes
                assert part.data.endswith(b"\n") or not part.data
                assert len(part.lines) == part.data.count(b"\n"), "every line is whole"
                highest = max(highest, disk_use(rank.folder.log))
                await asyncio.sleep(0.005)
            view = await rank.gone()
            assert view.exit is not None
            assert view.exit.code == 0, "it was never blocked for good, nor broken"
            assert highest <= 4 * segment + 64 * 1024
            while (part := rank.log.follow(offset, segment)).data:
                offset, read, skipped = part.next_offset, read + len(part.data), skipped + part.skipped_bytes
            assert offset == read + skipped == rank.log.size
            assert rank.log.size > megabytes * MIB * 9 // 10
            assert rank.texts()[-1] == "flood over"
            record = rank.folder.exit_record()
            assert record is not None
            assert record.lost_bytes == 0

    asyncio.run(test())


@pytest.mark.parametrize("disk", ["1m"], indirect=True)
def test_a_full_disk_costs_lines_which_are_counted(tmp_path: Path, disk: Path) -> None:
    """The rank's own folder lies on a small disk that the rank fills and, later, frees."""

    async def test() -> None:
        async with rank_bed(disk, log_segment_bytes=256 * 1024, shm=tmp_path) as bed:
            rank = await bed.start(NAME, "fills", str(disk / "ballast"))
            await rank.says("filling")
            await until(lambda: os.statvfs(disk).f_bfree == 0, "the disk to be full")
            os.kill(rank.leader, signal.SIGUSR1)
            await rank.says("written afterwards 1999")
            markers = [line.text for line in rank.log.last(5000) if line.stream == "shim"]
            assert markers
            assert all("lost: No space left on device" in marker for marker in markers)
            lost = sum(int(marker.split()[1]) for marker in markers)
            kept = sum(text.startswith("written on a full disk") for text in rank.texts())
            assert lost + kept == 2000
            os.kill(rank.leader, signal.SIGKILL)
            assert (await rank.gone()).exits[0].how == "shim"

    asyncio.run(test())


@pytest.mark.parametrize("disk", ["1m"], indirect=True)
def test_the_exit_is_recorded_even_on_a_full_disk(tmp_path: Path, disk: Path) -> None:
    async def test() -> None:
        async with rank_bed(disk, shm=tmp_path) as bed:
            rank = await bed.start(NAME, "fills", str(disk / "ballast"))
            await until(lambda: os.statvfs(disk).f_bfree == 0, "the disk to be full")
            os.kill(rank.leader, signal.SIGKILL)
            view = await rank.gone()
            assert view.exit is not None
            assert (view.exit.signal, view.exit.how) == (signal.SIGKILL, "shim")

    asyncio.run(test())


def test_it_stays_small(tmp_path: Path) -> None:
    async def test() -> None:
        async with rank_bed(tmp_path) as bed:
            rank = await bed.start(NAME, "floods", "20")
            await rank.says("flood over")
        async with rank_bed(tmp_path) as bed:
            quiet = await bed.start(NAME.replace("g1", "g2"), "wait")
            await quiet.says("ready")
            assert status_bytes(quiet.shim, "VmRSS") < 14 * MIB
            assert status_bytes(quiet.shim, "RssAnon") < 7 * MIB

    asyncio.run(test())


def test_its_folder_is_all_that_it_needs(tmp_path: Path) -> None:
    """A container has the folder and nothing else of the agent, below the same path."""
    program = tmp_path / "lib" / "sparkd_agent" / "shim"
    shutil.copytree(SHIM, program, ignore=shutil.ignore_patterns("__pycache__"))
    folder = tmp_path / "ranks" / NAME
    folder.mkdir(parents=True)
    launch = Launch((sys.executable, "-c", "print('hello')"), {}, str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(program / "__main__.py"), "0", NAME],
        input=shim_spec(RankFolder(folder), rank_spec(NAME), launch, DEFAULTS, folder_fd=None),
        cwd="/", env={}, capture_output=True, timeout=60, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout)["name"] == NAME
    assert done.stderr == b""
    assert [line.text for line in RankLog(folder / "log").last(9)] == ["hello"]
    assert json.loads((folder / "exit.json").read_bytes())["code"] == 0


@pytest.mark.parametrize("disk", ["64k"], indirect=True)
def test_an_unwritable_folder_starts_nothing(tmp_path: Path, disk: Path) -> None:
    async def test() -> None:
        async with rank_bed(disk, shm=tmp_path) as bed:
            (disk / "ranks").mkdir()
            fill(disk / "ballast")
            with pytest.raises(RankNotStarted, match="No space left on device"):
                await bed.launch(rank_spec(NAME, "wait"))
            assert not [pid for pid in PROC.pids() if PROC.rank_name(pid) == NAME]

    asyncio.run(test())
