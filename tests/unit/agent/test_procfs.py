"""`/proc` as files laid out by hand: what real processes rarely show."""

import os
import socket
from pathlib import Path

import pytest

from sparkd_agent.procfs import FileId, IoCounters, ProcessRef, ProcFs

STAT = "{pid} ({comm}) {state} 40 41 42 0 -1 4194560 1 2 3 4 150 50 7 8 20 0 {threads} 0 9001 1000 256 0"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


def process(root: Path, pid: int, *, comm: str = "python3", state: str = "S", threads: int = 1) -> Path:
    folder = root / str(pid)
    folder.mkdir()
    (folder / "stat").write_text(STAT.format(pid=pid, comm=comm, state=state, threads=threads))
    return folder


@pytest.mark.parametrize("comm", ["python3", "a b", "x) S 1 2 (", "((", "UVM GPU1 BH"])
def test_a_stat_line_is_read_from_the_last_parenthesis(root: Path, comm: str) -> None:
    process(root, 812, comm=comm)
    stat = ProcFs(root).stat(812)
    assert stat is not None
    assert (stat.comm, stat.state, stat.ppid, stat.session, stat.starttime) == (comm, "S", 40, 42, 9001)
    assert stat.cpu_seconds == 200 / os.sysconf("SC_CLK_TCK")
    assert stat.rss_bytes == 256 * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("state", "threads", "ended"),
    [("Z", 1, True), ("X", 1, True), ("Z", 3, False), ("S", 1, False), ("T", 1, False)],
)
def test_a_zombie_with_running_threads_has_not_ended(
    root: Path, state: str, threads: int, ended: bool
) -> None:
    process(root, 1, state=state, threads=threads)
    stat = ProcFs(root).stat(1)
    assert stat is not None
    assert stat.ended is ended
    assert ProcFs(root).alive(ProcessRef(1, 9001)) is not ended
    assert not ProcFs(root).alive(ProcessRef(1, 9000)), "another process with this pid"


def test_a_title_comes_without_its_padding(root: Path) -> None:
    folder = process(root, 5)
    (folder / "cmdline").write_bytes(b"VLLM::Worker_TP0" + b"\0" * 40)
    assert ProcFs(root).title(5) == "VLLM::Worker_TP0"
    (folder / "cmdline").write_bytes(b"VLLM::EngineCore" + b" " * 40 + b"\0")
    assert ProcFs(root).title(5) == "VLLM::EngineCore"


def test_the_environment_is_searched_by_whole_names(root: Path) -> None:
    (process(root, 5) / "environ").write_bytes(b"XSPARKD_RANK=a\0SPARKD_RANKS=b\0SPARKD_RANK=c=d\0")
    assert ProcFs(root).rank_name(5) == "c=d"


def test_io_and_caught_signals(root: Path) -> None:
    folder = process(root, 5)
    (folder / "io").write_text("rchar: 10\nwchar: 1\nread_bytes: 4096\n")
    (folder / "status").write_text("Name:\tx\nSigCgt:\t0000000000000800\n")
    assert ProcFs(root).io(5) == IoCounters(rchar=10, read_bytes=4096)
    assert ProcFs(root).catches(5, 12)
    assert not ProcFs(root).catches(5, 11)


def test_mapped_and_held_files_below_a_folder(root: Path) -> None:
    folder = process(root, 5)
    shm = root / "shm"
    shm.mkdir()
    (shm / "held").write_bytes(b"x")
    (folder / "maps").write_text(
        f"7f00-7f01 rw-s 00000000 00:1f 77                         {shm}/psm a\n"
        f"7f02-7f03 rw-s 00000000 00:1f 78                         {shm}/gone (deleted)\n"
        f"7f04-7f05 r-xp 00000000 08:01 9                          /usr/lib/libc.so\n"
        "7f06-7f07 rw-p 00000000 00:00 0 \n"
    )
    (folder / "fd").mkdir()
    (folder / "fd" / "3").symlink_to(shm / "held")
    (folder / "fd" / "4").symlink_to("/dev/null")
    at = (shm / "held").stat()
    assert ProcFs(root).files_under(5, str(shm)) == {
        FileId(f"{shm}/psm a", os.makedev(0, 0x1F), 77),
        FileId(f"{shm}/gone (deleted)", os.makedev(0, 0x1F), 78),
        FileId(f"{shm}/held", at.st_dev, at.st_ino),
    }


def test_a_process_that_is_gone_is_no_error(root: Path) -> None:
    proc = ProcFs(root)
    assert proc.stat(9) is None
    assert proc.title(9) == ""
    assert proc.rank_name(9) is None
    assert proc.io(9) is None
    assert proc.wchan(9) == ""
    assert proc.files_under(9, "/dev/shm") == set()
    assert not proc.catches(9, 12)


def test_who_listens_on_a_port_is_known_by_the_socket(tmp_path: Path) -> None:
    proc = ProcFs()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        inodes = proc.listeners(port)
        assert len(inodes) == 1
        assert proc.holds_socket(os.getpid(), inodes)
        assert not proc.holds_socket(os.getppid(), inodes)
    assert proc.listeners(port) == set()


def test_memory_that_several_processes_map_is_shared_out(root: Path) -> None:
    folder = process(root, 812)
    (folder / "smaps_rollup").write_text(
        "5581-7ffc ---p 00:00 0  [rollup]\nRss:  900 kB\nPss:  300 kB\nPss_Anon: 9 kB\n"
    )
    assert ProcFs(root).pss(812) == 300 * 1024
    assert ProcFs(root).pss(813) is None
