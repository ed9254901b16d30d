"""A Docker engine of the tests: started and stopped by them, with a socket and a data folder of its own."""

import contextlib
import io
import os
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from sparkd.errors import DockerRefused, DockerUnreachable
from sparkd_agent.procfs import ProcFs
from sparkd_agent.runtime.docker_api import DockerApi

PATIENCE_S: Final = 60.0
_LEFT_OUT: Final = (
    "./usr/share/doc",
    "./usr/share/locale",
    "./usr/share/man",
    "./var/lib/apt",
    "./var/cache",
)
PROC: Final = ProcFs()


def place() -> Path:
    """Where `prepare.sh` puts the engine."""
    return Path(os.environ.get("SPARKD_DOCKER") or Path.home() / ".cache" / "sparkd-tests" / "docker")


class DockerEngine:
    """No bridge, no firewall rules: what runs in it has the machine's network, or none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.socket = folder / "docker.sock"
        self.api = DockerApi(str(self.socket), PATIENCE_S)
        self._process: subprocess.Popen[bytes] | None = None
        self._containerd: subprocess.Popen[bytes] | None = None
        binaries = [place() / "usr" / "sbin", place() / "usr" / "bin"]
        self.env = {**os.environ, "PATH": ":".join([*map(str, binaries), os.environ["PATH"]])}
        self.env["LD_LIBRARY_PATH"] = str(place() / "usr" / "lib" / f"{os.uname().machine}-linux-gnu")

    def _run(self, *words: str) -> "subprocess.Popen[bytes]":
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                words, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder
            )

    def start(self, *, live_restore: bool = True) -> None:
        """As two services, which is how packages install it: the engine, and the containerd that it uses."""
        address = str(self.folder / "containerd.sock")
        if self._containerd is None:
            places = ("--root", str(self.folder / "root"), "--state", str(self.folder / "state"))
            self._containerd = self._run("containerd", "--address", address, *places, "--log-level", "error")
        words = [
            "dockerd",
            "--iptables=false",
            "--ip6tables=false",
            "--bridge=none",
            "--userland-proxy=false",
        ]
        words += ["--data-root", str(self.folder / "data"), "--exec-root", str(self.folder / "exec")]
        words += ["--pidfile", str(self.folder / "pid"), "-H", f"unix://{self.socket}"]
        words += ["--containerd", address, *(["--live-restore"] if live_restore else [])]
        self._process = self._run(*words)
        end = time.monotonic() + PATIENCE_S
        while not self.answers():
            assert self._process.poll() is None, self.log
            assert time.monotonic() < end, self.log
            time.sleep(0.05)

    def answers(self) -> bool:
        try:
            return bool(self.api.ask("GET", "/_ping", patience_s=5.0) == b"OK")
        except (DockerUnreachable, DockerRefused):
            return False

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()[-3000:]

    def kill(self) -> None:
        """As a crash: the containers' own shims live on."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(PATIENCE_S)

    def close(self) -> None:
        """Nothing of it stays: containers, processes, mounts, files."""
        if self._process is not None and self._process.poll() is None:
            for row in self.containers():
                self.remove(row["Id"])
            self.kill()  # nothing runs in it; a polite end takes seconds
        if self._containerd is not None:
            self._containerd.terminate()
            self._containerd.wait(PATIENCE_S)
        for pid in self._processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + PATIENCE_S
        while self._processes():
            assert time.monotonic() < end
            time.sleep(0.05)
        mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for mount in reversed(mounts):
            if mount.startswith(f"{self.folder}/"):
                subprocess.run(["umount", "-l", mount], check=True)
        shutil.rmtree(self.folder)

    def _processes(self) -> set[int]:
        """containerd's shims, by this engine's folder among their words."""
        stats = PROC.stats()
        return {
            pid
            for pid, stat in stats.items()
            if stat.comm.startswith("containerd")
            and not stat.ended
            and any(str(self.folder) in word for word in PROC.cmdline(pid))
        }

    # What is in it.

    def containers(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.api.ask("GET", "/containers/json", query={"all": "true"})
        return found

    def remove(self, container: str) -> None:
        with contextlib.suppress(DockerRefused):
            self.api.ask("DELETE", f"/containers/{container}", query={"force": "true"}, patience_s=PATIENCE_S)

    def inspect(self, container: str) -> dict[str, Any]:
        found: dict[str, Any] = self.api.ask("GET", f"/containers/{container}/json")
        return found

    def docker(self, *words: str, data: Any = None) -> str:
        """The command-line client; `data` is a file for its standard input."""
        done = self._client(*words, data=data)
        assert done.returncode == 0, f"docker {words}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout

    def try_docker(self, *words: str) -> str:
        """What it prints, whether or not it succeeds."""
        return self._client(*words).stdout

    def _client(self, *words: str, data: Any = None) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["docker", "-H", f"unix://{self.socket}", *words],
            env={**self.env, "DOCKER_BUILDKIT": "0"},
            stdin=data or subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def import_folder(self, name: str, root: Path, files: Mapping[str, str], *changes: str) -> None:
        """An image of one layer: a root file system, and some files more."""
        packed = self.folder / "image.tar"
        left_out = [f"--exclude={folder}/*" for folder in _LEFT_OUT]
        subprocess.run(["tar", "-C", str(root), *left_out, "-cf", str(packed), "."], check=True)
        with tarfile.open(packed, "a") as archive:
            _add(archive, files)
        self._import(name, packed, *changes)

    def import_files(self, name: str, files: Mapping[str, str], *changes: str) -> None:
        packed = self.folder / "image.tar"
        with tarfile.open(packed, "w") as archive:
            _add(archive, files)
        self._import(name, packed, *changes)

    def _import(self, name: str, packed: Path, *changes: str) -> None:
        options = [word for change in changes for word in ("--change", change)]
        with packed.open("rb") as file:
            self.docker("import", *options, "-", name, data=file)
        packed.unlink()


def _add(archive: tarfile.TarFile, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        body = text.encode()
        entry = tarfile.TarInfo(f"./{path}")
        entry.size, entry.mode = len(body), 0o755
        archive.addfile(entry, io.BytesIO(body))


@contextlib.contextmanager
def docker_engine(folder: Path) -> Iterator[DockerEngine]:
    engine = DockerEngine(folder)
    try:
        engine.start()
        yield engine
    finally:
        engine.close()
