"""Who may do what over REST: scopes, tokens at rest, the unix socket, TLS off loopback."""

import re
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkd.client import Client
from sparkd.coordinator.guard import wanted_scope
from sparkd.coordinator.tokens import Scope, mint_token, revoke_token
from sparkd.enrol.authority import make_authority
from sparkd.errors import CertificateRefused, CoordinatorUnreachable, Forbidden, Unauthorized
from tests.bed.coordinator import Coordinator
from tests.bed.secure import SecureCoordinator, make_identity

NARROWER: dict[Scope, tuple[Scope | None, ...]] = {
    "read": (None,),
    "operate": (None, "read"),
    "admin": (None, "read", "operate"),
}


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureCoordinator]:
    folder = tmp_path_factory.mktemp("tokens")
    one = SecureCoordinator(folder, {"a": "spark-a"}, unix=folder / "rest.sock")
    one.start()
    try:
        yield one
    finally:
        one.end()


@pytest.fixture(scope="module")
def tokens(coordinator: SecureCoordinator) -> dict[Scope | None, str | None]:
    scopes: tuple[Scope, ...] = ("read", "operate", "admin")
    return {None: None, **{scope: mint_token(coordinator.state, f"{scope}er", scope) for scope in scopes}}


def routes(coordinator: Coordinator) -> list[tuple[str, str]]:
    document = coordinator.ask("GET", "/openapi.json").json
    return [(method.upper(), path) for path, ways in document["paths"].items() for method in ways]


def test_every_route_wants_its_scope(
    coordinator: SecureCoordinator, tokens: dict[Scope | None, str | None]
) -> None:
    """Only the gate is asked: what it lets through may fail for many reasons, but not for these two."""
    asked = routes(coordinator)
    assert ("POST", "/v1/nodes") in asked
    for method, path in [*asked, ("GET", "/openapi.json")]:
        if path == "/healthz":
            assert coordinator.ask(method, path, token=None).status == 200
            continue
        target = re.sub(r"\{\w+\}", "nobody", path) + ("?follow=false" if "events" in path else "")
        wanted = wanted_scope(method, path)
        for held in NARROWER[wanted]:
            answer = coordinator.ask(method, target, token=tokens[held])
            expected = (401, "unauthorized") if held is None else (403, "forbidden")
            assert (answer.status, answer.json["code"]) == expected, (method, path, held)
        assert coordinator.ask(method, target, token=tokens[wanted]).status not in (401, 403), (method, path)


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("GET", "/v1/status", "read"),
        ("HEAD", "/metrics", "read"),
        ("POST", "/v1/plan", "read"),
        ("POST", "/v1/preflight", "read"),
        ("PUT", "/v1/deployments/x", "operate"),
        ("DELETE", "/v1/deployments/x", "operate"),
        ("POST", "/v1/nodes/a/drain", "operate"),
        ("POST", "/v1/nodes", "admin"),
        ("DELETE", "/v1/nodes/a", "admin"),
        ("DELETE", "/v1/nodes/drain", "admin"),
        ("POST", "/anything/new", "operate"),
    ],
)
def test_the_scope_of_a_request(method: str, path: str, scope: str) -> None:
    assert wanted_scope(method, path) == scope


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "bearer {token}",
        "Basic {token}",
        "{token}",
        "Bearer {token}x",
    ],
)
def test_what_is_no_token(coordinator: SecureCoordinator, header: str) -> None:
    given = {"authorization": header.format(token=coordinator.token)} if header else {}
    answer = coordinator.ask("GET", "/v1/status", token=None, headers=given)
    assert (answer.status, answer.json["code"]) == (401, "unauthorized")


def test_a_token_is_good_for_nothing_once_it_is_revoked(coordinator: SecureCoordinator) -> None:
    token = mint_token(coordinator.state, "passing", "read")
    assert coordinator.ask("GET", "/v1/status", token=token).status == 200
    revoke_token(coordinator.state, "passing")
    assert coordinator.ask("GET", "/v1/status", token=token).status == 401


def test_no_token_lies_on_the_coordinators_disk(coordinator: SecureCoordinator) -> None:
    token = mint_token(coordinator.state, "searched", "read")
    assert coordinator.ask("GET", "/v1/status", token=token).status == 200
    for file in coordinator.state.rglob("*"):
        if file.is_file():
            assert token.encode() not in file.read_bytes(), file
            assert not file.stat().st_mode & 0o077, f"{file} may be read by others"
    assert token not in coordinator.log


def test_the_command_line_makes_and_revokes_tokens(coordinator: SecureCoordinator) -> None:
    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        argv = [sys.executable, "-P", "-m", "sparkd", "coordinator", "token", *words]
        place = ["--state-dir", str(coordinator.state)]
        return subprocess.run([*argv, *place], check=False, capture_output=True, text=True, timeout=60)

    made = run("operator", "--scope", "operate")
    assert made.returncode == 0, made.stderr
    token = made.stdout.strip()
    assert coordinator.ask("POST", "/v1/nodes/a/drain", {}, token=token).status == 200
    again = run("operator")
    assert again.returncode == 1
    assert "a token called operator exists" in again.stderr
    assert run("operator", "--revoke").returncode == 0
    assert coordinator.ask("GET", "/v1/status", token=token).status == 401


# The ways in.


def test_the_unix_socket_is_for_its_group_and_wants_a_token_too(coordinator: SecureCoordinator) -> None:
    assert coordinator.unix is not None
    mode = coordinator.unix.stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o660
    url = f"unix://{coordinator.unix}"
    assert [node.name for node in Client(url, coordinator.token).nodes()] == ["spark-a"]
    with pytest.raises(Unauthorized):
        Client(url, None).nodes()
    with pytest.raises(CoordinatorUnreachable, match="no such socket"):
        Client("unix:///nowhere/at/all", None).nodes()


def test_a_narrow_token_is_told_what_it_lacks(
    coordinator: SecureCoordinator, tokens: dict[Scope | None, str | None]
) -> None:
    client = Client(f"http://127.0.0.1:{coordinator.rest}", tokens["read"])
    with pytest.raises(
        Forbidden, match="this token may only read: POST /v1/nodes/a/drain needs scope operate"
    ):
        client.drain("a")


def address_of_this_machine() -> str:
    """One that is not loopback; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        address: str = probe.getsockname()[0]
        return address


def test_off_loopback_rest_speaks_tls_and_is_known_by_its_authority(tmp_path: Path) -> None:
    one = SecureCoordinator(tmp_path, {"a": "spark-a"}, rest_host=(host := address_of_this_machine()))
    one.answers = lambda: _accepts(host, one.rest)  # type: ignore[method-assign]
    one.start()
    try:
        url = f"https://{host}:{one.rest}"
        known = Client(url, one.token, authority_file=one.state / "ca.crt")
        assert [node.name for node in known.nodes()] == ["spark-a"]
        with pytest.raises(CertificateRefused, match="certificate refused: that of"):
            Client(url, one.token).nodes()
        with pytest.raises(CoordinatorUnreachable):
            Client(f"http://{host}:{one.rest}", one.token).nodes()
    finally:
        one.end()


def _accepts(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 1.0).close()
    except OSError:
        return False
    return True


def test_a_node_of_the_cluster_cannot_pose_as_its_coordinator(tmp_path: Path) -> None:
    """Its certificate is of the right authority, and still names a node: no token is sent to it."""
    authority = make_authority(tmp_path / "ca", time.time())
    identity = make_identity(tmp_path / "b", authority, "b")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity / "node.crt", identity / "node.key")
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            try:
                with context.wrap_socket(connection, server_side=True) as secure:
                    received.append(secure.recv(4096))
            except OSError:
                received.append(b"")

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(CertificateRefused):
            Client(url, "secret", authority_file=identity / "ca.crt").nodes()
        thread.join()
    assert received == [b""]
