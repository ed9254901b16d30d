"""A real sshd on a loopback port, as the user that runs the tests, ended by pid."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.bed.coordinator import PATIENCE_S
from tests.bed.ports import free_port

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@dataclass
class Sshd:
    """`folder` holds its keys and a client's home: `home/.ssh` with a key that is let in."""

    folder: Path
    options: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def ssh(self) -> Path:
        return self.home / ".ssh"

    @property
    def host_key(self) -> Path:
        return self.folder / "host_key"

    @property
    def known_hosts(self) -> Path:
        return self.ssh / "known_hosts"

    def public(self) -> str:
        """The host key as a known_hosts file has it: kind and body."""
        return " ".join(self.host_key.with_suffix(".pub").read_text().split()[:2])

    def trust(self) -> None:
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {self.public()}\n")

    def prepare(self) -> None:
        self.ssh.mkdir(mode=0o700, parents=True, exist_ok=True)
        make_key(self.host_key)
        make_key(self.ssh / "id_ed25519")
        shutil.copyfile(self.ssh / "id_ed25519.pub", self.folder / "authorized")
        lines = [
            f"Port {self.port}",
            "ListenAddress 127.0.0.1",
            f"HostKey {self.host_key}",
            f"AuthorizedKeysFile {self.folder}/authorized",
            f"PidFile {self.folder}/pid",
            "StrictModes no",
            "UsePAM no",
            "PermitRootLogin yes",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            *self.options,
        ]
        (self.folder / "sshd_config").write_text("\n".join(lines) + "\n")

    def start(self) -> None:
        assert SSHD is not None
        if os.getuid() == 0:
            # Debian's sshd wants it, and makes it only where systemd runs.
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        words = [SSHD, "-D", "-f", str(self.folder / "sshd_config"), "-E", str(self.folder / "sshd.log")]
        self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL)
        end = time.monotonic() + PATIENCE_S
        while not self._listens():
            assert self.process.poll() is None, self.log
            assert time.monotonic() < end, self.log
            time.sleep(0.02)

    @property
    def log(self) -> str:
        return (self.folder / "sshd.log").read_text()

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def end(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(PATIENCE_S)


def make_key(file: Path, passphrase: str = "", kind: str = "ed25519") -> None:
    words = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", "", "-f", str(file)]
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)


@contextmanager
def sshd(folder: Path, *options: str) -> Iterator[Sshd]:
    one = Sshd(folder, options)
    one.prepare()
    one.start()
    try:
        yield one
    finally:
        one.end()


@dataclass
class Script:
    """A person who answers as written down, and remembers what was asked."""

    yes: bool = False
    secrets: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def confirm(self, question: str) -> bool:
        self.asked.append(question)
        return self.yes

    def secret(self, question: str) -> str | None:
        self.asked.append(question)
        return self.secrets.pop(0) if self.secrets else None
