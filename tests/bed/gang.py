"""A gang started by hand, without sparkd: what a person would type on each node."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tests.bed.ports import free_port

T = TypeVar("T")

# What the CPU build needs to run on loopback with two cores (facts/vllm.md §6); a stand-in ignores it.
VLLM_CPU_ENV = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
}


def until(look: Callable[[], T], timeout_s: float = 10.0, what: str = "") -> T:
    """Poll until `look()` is true; give what it gave."""
    end = time.monotonic() + timeout_s
    while not (seen := look()):
        if time.monotonic() > end:
            raise TimeoutError(f"not within {timeout_s:g} s: {what or look}")
        time.sleep(0.02)
    return seen


@dataclass
class Rank:
    number: int
    leader: subprocess.Popen[bytes]
    stdout: Path
    stderr: Path

    def log(self) -> str:
        return self.stdout.read_text(errors="replace") + self.stderr.read_text(errors="replace")

    def pids(self) -> dict[str, int]:
        """The living processes of the rank's session, by title; untitled ones as `pid N`."""
        found = {}
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
                title = (
                    (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                )
            except OSError:
                continue
            if int(stat[3]) == self.leader.pid and stat[0] not in "ZX":
                found[title if title.startswith("VLLM::") else f"pid {folder.name}"] = int(folder.name)
        return found

    def segments(self) -> set[Path]:
        """Files in /dev/shm that the rank maps now; by inode: glibc renames a semaphore it has mapped."""
        mapped = set()
        for pid in self.pids().values():
            with suppress(OSError):
                for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                    if " /dev/shm/" in line:
                        mapped.add(int(line.split()[4]))
        with os.scandir("/dev/shm") as entries:  # a stat of its own might find it gone: others work there too
            return {Path(entry.path) for entry in entries if entry.inode() in mapped}

    def process(self, title: str) -> int:
        """The pid of the process with that title (`VLLM::EngineCore`)."""
        return self.pids()[title]


@dataclass
class Gang:
    api_port: int
    master_port: int
    temporary: Path
    """Where vLLM makes its sockets, and leaves them when it is killed; a short path, as sockets need one."""
    ranks: list[Rank] = field(default_factory=list)
    _segments: set[Path] = field(default_factory=set)

    def ready(self, timeout_s: float) -> None:
        def look() -> bool:
            ended = [rank.number for rank in self.ranks if rank.leader.poll() is not None]
            if ended:
                raise AssertionError(f"rank {ended[0]} ended:\n{self.ranks[ended[0]].log()[-3000:]}")
            return "Application startup complete." in self.ranks[0].stderr.read_text(errors="replace")

        until(look, timeout_s, "the API of rank 0")
        self._segments = self._mapped()

    def _mapped(self) -> set[Path]:
        return {path for rank in self.ranks for path in rank.segments()}

    def end(self) -> None:
        """SIGKILL leaves vLLM's shared memory behind: what these ranks mapped is removed afterwards, also if
        a test has killed the one that mapped it.
        """
        segments = self._segments | self._mapped()
        for rank in self.ranks:
            # The leader may be gone while its session lives on; its pid is not reused meanwhile.
            with suppress(ProcessLookupError):
                os.killpg(rank.leader.pid, signal.SIGKILL)
            rank.leader.wait()
        for path in segments:
            path.unlink(missing_ok=True)
        shutil.rmtree(self.temporary, ignore_errors=True)


@contextmanager
def hand_started(
    python: Path,
    model: str,
    folder: Path,
    *,
    ranks: int = 2,
    env: Mapping[str, str] | None = None,
    args: tuple[str, ...] = (),
) -> Iterator[Gang]:
    """Start `vllm serve` on loopback, each rank in a session of its own; SIGKILL them all at the end."""
    gang = Gang(free_port(), free_port(), Path(tempfile.mkdtemp(prefix="sparkd-")))
    base = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "TMPDIR": str(gang.temporary),
        **VLLM_CPU_ENV,
        **(env or {}),
    }
    common = (
        *("-m", "vllm.entrypoints.cli.main", "serve", model),
        *(
            "--tensor-parallel-size",
            str(ranks),
            "--nnodes",
            str(ranks),
            "--distributed-executor-backend",
            "mp",
        ),
        *(
            "--master-addr",
            "127.0.0.1",
            "--master-port",
            str(gang.master_port),
            "--served-model-name",
            "tiny",
        ),
        *("--dtype", "bfloat16", "--enforce-eager", "--max-model-len", "4096", "--max-num-seqs", "4", *args),
    )
    try:
        for number in range(ranks):
            own = ("--host", "127.0.0.1", "--port", str(gang.api_port)) if number == 0 else ("--headless",)
            out, err = folder / f"rank{number}.out", folder / f"rank{number}.err"
            with out.open("wb") as stdout, err.open("wb") as stderr:
                leader = subprocess.Popen(
                    [str(python), *common, "--node-rank", str(number), *own],
                    env={**base, "VLLM_HOST_IP": f"127.0.0.{number + 1}"},
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    start_new_session=True,
                )
            gang.ranks.append(Rank(number, leader, out, err))
        yield gang
    finally:
        gang.end()
