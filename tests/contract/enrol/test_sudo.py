"""Becoming root: a stand-in for sudo that asks as the real one does (a byte at a time, three tries), over a
real sshd. The real one is tried in the lab.
"""

import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparkd.enrol.conversation import NODE_PYTHON, Conversation, converse_over_ssh, remote_command
from sparkd.enrol.ssh import Entered, Login
from sparkd.enrol.target import SshSettings
from sparkd.errors import EnrolmentFailed, LoginFailed
from tests.bed.sshd import SSHD, Script, sshd

pytestmark = pytest.mark.skipif(
    not (SSHD and Path(NODE_PYTHON).exists() and shutil.which("ssh-keygen")),
    reason="openssh-server is needed",
)

_SUDO = """#!/usr/bin/python3
import os, sys
books = {books!r}
right = {right!r}
assert sys.argv[1:3] == ["-S", "-p"] and sys.argv[4] == "--", sys.argv
with open(books, "a") as heard:
    if {lecture!r}:
        sys.stderr.write("We trust you have received the usual lecture.\\n")
    for turn in range(3 if right is not None else 0):
        sys.stderr.write(sys.argv[3])
        sys.stderr.flush()
        word = b""
        while not word.endswith(b"\\n"):
            byte = os.read(0, 1)
            if not byte:
                sys.exit("sudo: no password was provided")
            word += byte
        heard.write(word.decode())
        heard.flush()
        if word.decode().rstrip("\\n") == right:
            break
        sys.stderr.write("Sorry, try again.\\n")
    else:
        if right is not None:
            sys.exit("sudo: 3 incorrect password attempts")
os.execv(sys.argv[5], sys.argv[5:])
"""


class Bed:
    def __init__(self, folder: Path, entered: Entered) -> None:
        self.folder = folder
        self.entered = entered

    def sudo(self, right: str | None, *, lecture: bool = False) -> None:
        text = _SUDO.format(books=str(self.folder / "heard"), right=right, lecture=lecture)
        place = self.folder / "bin/sudo"
        place.write_text(text)
        place.chmod(0o755)

    @property
    def heard(self) -> list[str]:
        file = self.folder / "heard"
        return file.read_text().splitlines() if file.exists() else []

    def talk(self, password: Callable[[int], str | None] | None) -> Conversation:
        return converse_over_ssh(self.entered, sudo=True, password=password)


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    (tmp_path / "bin").mkdir()
    with sshd(tmp_path, f"SetEnv PATH={tmp_path}/bin:/usr/bin:/bin") as server:
        server.trust()
        route = SshSettings(server.home, system=tmp_path / "none").route(f"127.0.0.1:{server.port}")
        entered = Login(Script()).open(route)
        yield Bed(tmp_path, entered)
        entered.close()


def test_sudo_without_a_password_is_told_none(bed: Bed) -> None:
    bed.sudo(None)

    def nobody(_number: int) -> str | None:
        raise AssertionError("nobody asked for a password")

    assert bed.talk(nobody).ask("begin")["uid"] >= 0
    assert bed.heard == []


@pytest.mark.parametrize("password", ["secret", "with space", "quo'te\"$HOME`x`", "ünïcode", "-n", "%p", ""])
def test_the_password_reaches_sudo_as_it_is_and_nothing_else(bed: Bed, password: str) -> None:
    bed.sudo(password, lecture=True)
    bed.talk(lambda _number: password).ask("begin")
    assert bed.heard == [password]


def test_a_wrong_password_is_asked_again(bed: Bed) -> None:
    bed.sudo("right")
    words = ["wrong", "right"]
    asked: list[int] = []

    def give(number: int) -> str | None:
        asked.append(number)
        return words[number]

    assert bed.talk(give).ask("begin")["uid"] >= 0
    assert asked == [0, 1]
    assert bed.heard == ["wrong", "right"]


def test_three_wrong_passwords_end_it_and_the_script_was_never_sent_to_sudo(bed: Bed) -> None:
    bed.sudo("right")
    with pytest.raises((LoginFailed, EnrolmentFailed), match=r"incorrect|wrong"):
        bed.talk(lambda _number: "wrong")
    assert bed.heard == ["wrong"] * 3


def test_nobody_to_ask_is_said_so(bed: Bed) -> None:
    bed.sudo("right")
    with pytest.raises(LoginFailed, match="a password is needed"):
        bed.talk(lambda _number: None)
    assert bed.heard == []


def test_who_may_not_use_sudo_hears_what_sudo_says(bed: Bed) -> None:
    place = bed.folder / "bin/sudo"
    place.write_text("#!/bin/sh\necho 'ann is not in the sudoers file.' >&2\nexit 1\n")
    place.chmod(0o755)
    with pytest.raises(EnrolmentFailed, match="ann is not in the sudoers file"):
        bed.talk(lambda _number: "x")


def test_the_remote_command_is_one_line_of_constants_and_the_mark() -> None:
    """The only text that a remote shell ever reads: what a person typed is not in it."""
    for sudo in (False, True):
        words = shlex.split(remote_command("sparkd-0011", sudo=sudo))
        assert words[-6:-3] == [NODE_PYTHON, "-I", "-c"]
        assert words[-2:] == ["sparkd-0011", "ready"]
        assert not set(words[-3]) & set("'\"\\$`!")
        assert words[:-6] == (["sudo", "-S", "-p", "sparkd-0011 password:", "--"] if sudo else [])
        assert "\n" not in remote_command("sparkd-0011", sudo=sudo)
