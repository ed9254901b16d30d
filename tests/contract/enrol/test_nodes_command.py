"""`sparkd nodes add` as a program: a person's home and ssh, a real coordinator, an sshd on this machine."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sparkd.client import Client
from sparkd.enrol.conversation import NODE_PYTHON
from tests.bed.secure import SecureCoordinator
from tests.bed.sshd import SSHD, Sshd, sshd

pytestmark = pytest.mark.skipif(
    not (SSHD and os.getuid() == 0 and Path(NODE_PYTHON).exists()),
    reason="root and openssh-server are needed: the machine is looked at as a node would be",
)


@dataclass
class Bed:
    server: Sshd
    coordinator: SecureCoordinator

    def add(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Always a dry run: the node is the machine that the tests run on."""
        home = self.server.home
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "SPARKD_COORDINATOR": f"http://127.0.0.1:{self.coordinator.rest}",
            "SPARKD_TOKEN_FILE": str(self.coordinator.token_file),
            "SPARKD_STATE_DIR": str(home / "state"),
            "SPARKD_CONFIG_DIR": str(home / "config"),
        }
        argv = [sys.executable, "-m", "sparkd", "nodes", "add", "--dry-run", "--offline", *words]
        return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    for name in ("ssh", "coordinator"):
        (tmp_path / name).mkdir()
    coordinator = SecureCoordinator(tmp_path / "coordinator")
    coordinator.start()
    try:
        with sshd(tmp_path / "ssh") as server:
            lines = ["Host spark-1", "HostName 127.0.0.1", f"Port {server.port}"]
            lines += [f"IdentityFile {server.ssh}/id_ed25519", f"UserKnownHostsFile {server.known_hosts}"]
            (server.ssh / "config").write_text("\n".join(lines) + "\n")
            yield Bed(server, coordinator)
    finally:
        coordinator.end()


def test_all_that_is_in_the_way_is_said_at_once_and_nothing_is_changed(bed: Bed) -> None:
    bed.server.trust()
    done = bed.add("spark-1")
    assert done.returncode == 1
    assert "spark-1 is no node: no wheel of msgspec" in done.stdout
    assert "pip download" in done.stdout
    assert "probe        done" in done.stderr
    assert Client(f"http://127.0.0.1:{bed.coordinator.rest}", bed.coordinator.token).nodes() == ()


def test_nobody_at_the_terminal_trusts_no_unknown_host(bed: Bed) -> None:
    done = bed.add("spark-1")
    assert done.returncode == 1
    assert "the host key of [127.0.0.1]:" in done.stdout
    assert "--accept-new" in done.stdout
    assert not bed.server.known_hosts.exists()
    assert "Accepted" not in bed.server.log


def test_a_target_that_is_none_is_wrong_usage(bed: Bed) -> None:
    done = bed.add("-oProxyCommand=x")
    assert done.returncode == 2
    done = bed.add("a b")
    assert done.returncode == 2
    assert "is no [USER@]HOST[:PORT]" in done.stderr
