"""`sparkd init` onto a machine that is a folder, with the real coordinator that it leaves behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkd.client import Client
from sparkd.coordinator.tokens import read_tokens
from sparkd.enrol.conversation import NODE_PYTHON
from sparkd.enrol.enrolment import State
from sparkd.enrol.host import ThisHost
from sparkd.enrol.init import BASE, Init, Wanted, cannot, drop_in, known_address, without_service
from sparkd.errors import SparkdError
from tests.bed.coordinator import PATIENCE_S
from tests.bed.node_folder import NodeFolder
from tests.bed.ports import free_port

VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
pytestmark = pytest.mark.skipif(
    not Path(f"/usr/bin/python{VERSION}").exists() and os.path.realpath(sys.executable).startswith("/root"),
    reason="everybody must be able to run a Python of this version",
)


class Machine:
    """Whose systemctl starts nothing: the test is systemd, and starts what the drop-in says."""

    def __init__(self, folder: Path) -> None:
        self.node = NodeFolder(folder / "machine")
        self.state = folder / "state"
        self.wanted = Wanted(
            f"127.0.0.1:{free_port()}",
            "root",
            folder / "token",
            rest=f"127.0.0.1:{free_port()}",
            state=self.state,
            owner=None,
        )
        self.told: list[tuple[str, State]] = []
        self.process: subprocess.Popen[bytes] | None = None

    def init(self) -> None:
        self.told.clear()
        host = ThisHost("here", "root", str(self.state), NODE_PYTHON, self.node.place)
        Init(host, self.wanted, lambda step, state, _words: self.told.append((step, state))).run()

    def boot(self) -> None:
        """Start the copied program as the unit would, in a moment: `init` waits for it."""
        program = self.node.root / BASE / "current/bin/sparkd"
        words = ["coordinator", "run", "--state-dir", str(self.state)]
        words += ["--rest", self.wanted.rest, "--agents", self.wanted.agents]
        self.process = subprocess.Popen([program, *words], stdin=subprocess.DEVNULL, env={"HOME": "/"})

    def stop(self) -> None:
        if self.process is not None:
            os.kill(self.process.pid, signal.SIGTERM)
            self.process.wait(PATIENCE_S)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    one = Machine(tmp_path)
    yield one
    one.stop()


def test_the_life_of_a_coordinators_machine(machine: Machine) -> None:
    """One story, because the copy of the whole program takes its time."""
    # It breaks off, where systemd does not do what it is asked.
    works = machine.node.systemctl.read_text()
    machine.node.systemctl.write_text("#!/bin/sh\necho 'no bus' >&2; exit 3\n")
    with pytest.raises(SparkdError, match="no bus"):
        machine.init()
    assert machine.told[-1] == ("start", "failed")
    assert (machine.state / "ca.key").stat().st_mode & 0o777 == 0o600
    machine.node.systemctl.write_text(works)

    # It goes on where it broke; what it left behind is a coordinator that answers.
    machine.boot()
    machine.init()
    steps = dict(machine.told)
    assert steps["authority"] == steps["token"] == steps["unit"] == "same"
    assert list(steps)[-1] == "verify"
    assert "enable sparkd-coordinator.service" in machine.node.calls
    text = (machine.node.root / "etc/systemd/system/sparkd-coordinator.service.d/10-init.conf").read_text()
    assert f"ExecStart=\nExecStart=/{BASE}/current/bin/sparkd coordinator run" in text
    assert f"--agents {machine.wanted.agents}" in text
    assert known_address(machine.node.root) == "127.0.0.1"
    assert known_address(machine.state) is None
    url = f"http://{machine.wanted.rest}"
    token = machine.wanted.token_file.read_text().strip()
    assert machine.wanted.token_file.stat().st_mode & 0o777 == 0o600
    assert Client(url, token).membership().agent_urls == (f"https://{machine.wanted.agents}",)

    # A token that was lost is made anew, and the old one counts no more.
    machine.wanted.token_file.unlink()
    machine.init()
    assert ("token", "done") in machine.told
    with pytest.raises(SparkdError, match="token"):
        Client(url, token).membership()
    Client(url, machine.wanted.token_file.read_text().strip()).membership()
    assert len(read_tokens(machine.state)) == 1


@pytest.mark.parametrize(
    ("place", "expected"),
    [("/srv/a b", '"/srv/a b"'), ("/srv/50%", "/srv/50%%"), ("/srv/$HOME", "/srv/$$HOME"), ('/a"b', '\\"')],
)
def test_systemd_reads_back_what_was_meant(place: str, expected: str) -> None:
    assert expected in drop_in(Wanted("10.0.0.1:7071", "ann", Path("t"), state=Path(place)))


def test_what_stands_in_the_way_of_a_service_is_said(tmp_path: Path) -> None:
    assert "no systemd" in cannot(uid=0, has_systemd=False)
    assert "sudo" in cannot(uid=1000, has_systemd=True)
    assert cannot(uid=0, has_systemd=True) == ""


def test_without_a_service_there_is_an_authority_and_one_token(tmp_path: Path) -> None:
    folder, token = tmp_path / "coordinator", tmp_path / "token"
    without_service(folder, token, "ann")
    first = token.read_text()
    without_service(folder, token, "ann")
    assert token.read_text() == first
    assert [one.scope for one in read_tokens(folder)] == ["admin"]
    assert (folder / "ca.key").stat().st_mode & 0o777 == 0o600
