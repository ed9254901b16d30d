"""Reaching a real sshd: host keys, keys, the ssh agent, jumps; and a conversation with a script on it."""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkd.enrol.conversation import NODE_PYTHON, converse_over_ssh
from sparkd.enrol.ssh import Login
from sparkd.enrol.target import SshSettings
from sparkd.errors import EnrolmentFailed, HostKeyRefused, LoginFailed, NotReached
from tests.bed.ports import free_port
from tests.bed.sshd import SSHD, Script, Sshd, make_key, sshd

pytestmark = pytest.mark.skipif(
    not (SSHD and shutil.which("ssh-keygen") and Path(NODE_PYTHON).exists()),
    reason="openssh-server is needed",
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Sshd]:
    with sshd(tmp_path) as one:
        yield one


def settings(server: Sshd) -> SshSettings:
    return SshSettings(server.home, system=server.folder / "no-etc-ssh")


def target(server: Sshd) -> str:
    return f"127.0.0.1:{server.port}"


def enter(server: Sshd, person: Script, where: str | None = None, *, accept_new: bool = False) -> str:
    """Log in, ask who we are there, and leave."""
    route = settings(server).route(where or target(server))
    entered = Login(person, accept_new=accept_new).open(route)
    try:
        talk = converse_over_ssh(entered, sudo=False)
        return str(talk.ask("begin")["user"])
    finally:
        entered.close()


def test_a_known_host_is_entered_with_a_key_and_without_a_question(server: Sshd) -> None:
    server.trust()
    person = Script()
    assert enter(server, person) == getpass.getuser()
    assert person.asked == []


def test_an_unknown_host_shows_its_fingerprint_and_is_refused_when_nobody_vouches(server: Sshd) -> None:
    words = ["ssh-keygen", "-lf", str(server.host_key)]
    shown = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()[1]
    person = Script(yes=False)
    with pytest.raises(HostKeyRefused, match="not known") as refusal:
        enter(server, person)
    assert shown in str(refusal.value)
    assert shown in person.asked[0]
    assert not server.known_hosts.exists()
    assert "Accepted" not in server.log


def test_a_host_that_a_person_vouched_for_is_known_from_then_on(server: Sshd) -> None:
    enter(server, Script(yes=True))
    person = Script()
    enter(server, person)
    assert person.asked == []
    # And ssh itself understands what was written.
    found = ["ssh-keygen", "-F", f"[127.0.0.1]:{server.port}", "-f", str(server.known_hosts)]
    assert server.public() in subprocess.run(found, check=True, capture_output=True, text=True).stdout


def test_accept_new_takes_hosts_that_were_never_seen_but_none_that_changed(server: Sshd) -> None:
    person = Script()
    enter(server, person, accept_new=True)
    assert person.asked == []
    make_key(server.folder / "other")
    other = (server.folder / "other.pub").read_text().split()
    server.known_hosts.write_text(f"# mine\n[127.0.0.1]:{server.port} {other[0]} {other[1]}\n")
    with pytest.raises(HostKeyRefused, match="CHANGED") as refusal:
        enter(server, person, accept_new=True)
    assert f"{server.known_hosts}:2" in str(refusal.value)
    assert "ssh-keygen -R" in str(refusal.value)
    assert server.log.count("Accepted publickey") == 1


def test_a_host_known_by_a_key_of_another_kind_has_changed(server: Sshd) -> None:
    make_key(server.folder / "other", kind="ecdsa")
    other = (server.folder / "other.pub").read_text().split()
    server.known_hosts.write_text(f"[127.0.0.1]:{server.port} {other[0]} {other[1]}\n")
    with pytest.raises(HostKeyRefused, match="CHANGED"):
        enter(server, Script(yes=True), accept_new=True)


def test_the_kind_of_key_that_is_known_is_asked_for(tmp_path: Path) -> None:
    """A host has keys of several kinds; the one we know is not the one that we would like best."""
    make_key(tmp_path / "ecdsa", kind="ecdsa")
    with sshd(tmp_path, f"HostKey {tmp_path / 'ecdsa'}") as server:
        words = (tmp_path / "ecdsa.pub").read_text().split()
        server.known_hosts.write_text(f"[127.0.0.1]:{server.port} {words[0]} {words[1]}\n")
        assert enter(server, Script()) == getpass.getuser()


def test_a_key_marked_revoked_is_refused(server: Sshd) -> None:
    server.known_hosts.write_text(
        f"@revoked * {server.public()}\n[127.0.0.1]:{server.port} {server.public()}\n"
    )
    with pytest.raises(HostKeyRefused, match=r"@revoked at .*known_hosts:1"):
        enter(server, Script(yes=True), accept_new=True)


def test_an_alias_of_the_configuration_with_its_port_user_and_key(server: Sshd) -> None:
    (server.ssh / "id_ed25519").rename(server.ssh / "spark-key")
    (server.ssh / "id_ed25519.pub").unlink()
    (server.ssh / "more").write_text(f"Host spark-1\n  HostName 127.0.0.1\n  Port {server.port}\n")
    (server.ssh / "config").write_text(
        f'Include "{server.ssh}/mo*"\nHost spark-*\n  User {getpass.getuser()}\n'
        f"  IdentityFile {server.ssh}/spark-key\n"
    )
    server.trust()
    route = settings(server).route("spark-1")
    assert (route.name, route.host, route.port) == ("spark-1", "127.0.0.1", server.port)
    assert enter(server, Script(), "spark-1") == getpass.getuser()


def test_a_key_with_a_passphrase_is_unlocked_once_for_all_hosts(server: Sshd) -> None:
    server.trust()
    key = server.ssh / "id_ed25519"
    for file in (key, key.with_suffix(".pub")):
        file.unlink()
    make_key(key, passphrase="open sesame")
    shutil.copyfile(key.with_suffix(".pub"), server.folder / "authorized")
    person = Script(secrets=["open sesame"])
    login = Login(person)
    for _ in range(2):
        login.open(settings(server).route(target(server))).close()
    assert person.asked == [f"Passphrase of {key}"]


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
@pytest.mark.parametrize("passphrase", ["", "open sesame"])
def test_every_kind_of_key_file(server: Sshd, kind: str, passphrase: str) -> None:
    server.trust()
    (server.ssh / "id_ed25519").unlink()
    file = server.ssh / f"mine-{kind}"
    make_key(file, passphrase, kind)
    (server.ssh / "config").write_text(f"IdentityFile {file}\n")
    shutil.copyfile(f"{file}.pub", server.folder / "authorized")
    assert enter(server, Script(secrets=["open sesame"])) == getpass.getuser()


def test_a_wrong_passphrase_opens_nothing(server: Sshd) -> None:
    server.trust()
    file = server.ssh / "id_ecdsa"
    make_key(file, "open sesame", "ecdsa")
    (server.ssh / "id_ed25519").unlink()
    shutil.copyfile(f"{file}.pub", server.folder / "authorized")
    with pytest.raises(LoginFailed):
        enter(server, Script(secrets=["open barley"]))


def test_a_key_of_the_ssh_agent(server: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    server.trust()
    place = server.folder / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(place)], stdout=subprocess.DEVNULL)
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(place))
        while not place.exists():
            assert agent.poll() is None
        words = ["ssh-add", "-q", str(server.ssh / "id_ed25519")]
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
        shutil.rmtree(server.ssh)
        server.ssh.mkdir(mode=0o700)
        server.trust()
        assert enter(server, Script()) == getpass.getuser()
    finally:
        os.kill(agent.pid, signal.SIGTERM)
        agent.wait(10)


def test_who_is_not_let_in_hears_what_was_tried(server: Sshd) -> None:
    server.trust()
    (server.folder / "authorized").write_text("")
    with pytest.raises(LoginFailed, match="id_ed25519") as refusal:
        enter(server, Script())
    assert "ssh-copy-id" in str(refusal.value)


def test_through_a_jump_host_whose_key_is_judged_as_well(tmp_path: Path) -> None:
    (tmp_path / "jump").mkdir()
    with sshd(tmp_path) as server, sshd(tmp_path / "jump") as jump:
        shutil.copyfile(server.folder / "authorized", jump.folder / "authorized")
        (server.ssh / "config").write_text(
            f"Host inner\n  HostName 127.0.0.1\n  Port {server.port}\n  ProxyJump 127.0.0.1:{jump.port}\n"
        )
        server.trust()
        with pytest.raises(HostKeyRefused, match=str(jump.port)):
            enter(server, Script(), "inner")
        with server.known_hosts.open("a") as known:
            known.write(f"[127.0.0.1]:{jump.port} {jump.public()}\n")
        assert enter(server, Script(), "inner") == getpass.getuser()
        assert "Accepted publickey" in jump.log


def test_nobody_listens_there(server: Sshd) -> None:
    with pytest.raises(NotReached, match="refused"):
        enter(server, Script(), f"127.0.0.1:{free_port()}")


def test_who_listens_there_speaks_no_ssh(server: Sshd) -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        with listener.accept()[0] as link:
            link.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        with pytest.raises(NotReached, match="does not speak SSH"):
            enter(server, Script(), f"127.0.0.1:{listener.getsockname()[1]}")
    finally:
        thread.join()
        listener.close()


def test_what_a_login_shell_prints_is_no_answer(tmp_path: Path) -> None:
    noise = tmp_path / "noise"
    noise.write_text(
        '#!/bin/sh\necho "Welcome to DGX"; echo "tty?" >&2\nexec /bin/sh -c "$SSH_ORIGINAL_COMMAND"\n'
    )
    noise.chmod(0o755)
    with sshd(tmp_path, f"ForceCommand {noise}") as server:
        server.trust()
        assert enter(server, Script()) == getpass.getuser()


def test_a_node_without_python_is_named(tmp_path: Path) -> None:
    with sshd(tmp_path, 'ForceCommand echo "python3: not found"; exit 127') as server:
        server.trust()
        with pytest.raises(EnrolmentFailed, match=r"cannot be run; it said: python3: not found"):
            enter(server, Script())
