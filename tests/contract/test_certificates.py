"""Who gets in at the agents' port, and what those who do not are told. A real coordinator, real TLS."""

import asyncio
import http.client
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509

from sparkd.clock import Instant
from sparkd.enrol.authority import make_authority
from sparkd.enrol.roster import read_roster, revoke_node
from sparkd.records.defaults import DEFAULTS
from sparkd.records.report import Caller, CertificateAsked, Hello, NodeFacts
from sparkd_agent.identity import Identity
from sparkd_agent.link import Link
from tests.bed.agent_process import AgentProcess, until
from tests.bed.coordinator import PATIENCE_S, Answer
from tests.bed.secure import (
    DAY,
    SecureCoordinator,
    client_context,
    make_identity,
    openssl,
    send_securely,
)

OF_CERTIFICATES = {"CERTIFICATE_REFUSED", "CERTIFICATE_ENDS", "CLOCK_OFF"}


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[SecureCoordinator]:
    one = SecureCoordinator(tmp_path, {"a": "spark-a", "b": "spark-b"}, {"hello_retry_s": 0.2})
    one.start()
    try:
        yield one
    finally:
        one.end()


def caller(node: str, seq: int = 1) -> Caller:
    return Caller(node, "boot", "run", seq)


def say_hello(coordinator: SecureCoordinator, identity: Path, node: str, **more: Any) -> Answer:
    facts = NodeFacts(node, "a name of its own", "127.0.0.1", "127.0.0.1")
    hello = Hello(caller(node), facts, "test", holder=read_roster(coordinator.state).holder)
    return send_securely(
        coordinator.agents,
        "POST",
        "/agent/v1/hello",
        context=client_context(identity),
        body=msgspec.to_builtins(hello),
        **more,
    )


def verdicts(coordinator: SecureCoordinator, name: str) -> list[dict[str, Any]]:
    """Of its certificate only: a whole agent also tells what is wrong with the machine under the tests."""
    nodes = coordinator.ask("GET", "/v1/nodes").json
    found: list[dict[str, Any]] = next(node["verdicts"] for node in nodes if node["name"] == name)
    return [one for one in found if one["id"] in OF_CERTIFICATES]


def test_an_enrolled_node_comes_in_under_the_name_it_was_enrolled_with(
    coordinator: SecureCoordinator, tmp_path: Path
) -> None:
    identity = make_identity(tmp_path / "a", coordinator.authority, "a")
    assert say_hello(coordinator, identity, "a").status == 200
    alive = [node["name"] for node in coordinator.ask("GET", "/v1/nodes").json if node["state"] == "alive"]
    assert alive == ["spark-a"]


def test_without_a_certificate(coordinator: SecureCoordinator) -> None:
    with pytest.raises(ssl.SSLError, match="ALERT_CERTIFICATE_REQUIRED"):
        send_securely(coordinator.agents, "GET", "/agent/v1/document", context=client_context(None))


def test_a_certificate_of_a_foreign_authority(coordinator: SecureCoordinator, tmp_path: Path) -> None:
    identity = make_identity(tmp_path / "a", make_authority(tmp_path / "foreign", time.time()), "a")
    with pytest.raises(ssl.SSLError, match="ALERT_UNKNOWN_CA"):
        say_hello(coordinator, identity, "a")


def test_what_an_older_tls_offers_is_not_enough(coordinator: SecureCoordinator, tmp_path: Path) -> None:
    identity = make_identity(tmp_path / "a", coordinator.authority, "a")
    context = client_context(identity)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError, match="VERSION"):
        send_securely(coordinator.agents, "GET", "/agent/v1/document", context=context)


def test_an_expired_certificate(coordinator: SecureCoordinator, tmp_path: Path) -> None:
    identity = make_identity(tmp_path / "a", coordinator.authority, "a", issued=time.time() - 400 * DAY)
    answer = say_hello(coordinator, identity, "a")
    assert (answer.status, answer.json["code"]) == (403, "certificate-refused")
    assert "certificate refused: its certificate is valid from" in answer.json["detail"]
    (verdict,) = verdicts(coordinator, "spark-a")
    assert verdict["id"] == "CERTIFICATE_REFUSED"
    assert verdict["title"] == answer.json["detail"]
    assert say_hello(coordinator, identity, "a").status == 403
    assert coordinator.log.count("node a stays outside: certificate refused") == 1


def test_a_certificate_refused_for_a_clock_names_the_clock(
    coordinator: SecureCoordinator, tmp_path: Path
) -> None:
    identity = make_identity(tmp_path / "a", coordinator.authority, "a", issued=time.time() - 400 * DAY)
    wrong = {"x-sparkd-clock": str(time.time() - 100 * DAY)}
    answer = say_hello(coordinator, identity, "a", headers=wrong)
    assert (answer.status, answer.json["code"]) == (403, "clock-off")
    assert "clock of spark-a is off by -100 d" in answer.json["detail"]
    assert verdicts(coordinator, "spark-a")[0]["id"] == "CLOCK_OFF"
    fresh = make_identity(tmp_path / "fresh", coordinator.authority, "a")
    assert say_hello(coordinator, fresh, "a").status == 200
    assert verdicts(coordinator, "spark-a") == [], "what is over is not told any more"


def test_a_certificate_that_ends_while_its_connection_lasts(
    coordinator: SecureCoordinator, tmp_path: Path
) -> None:
    """Revoked in the middle: the very next request on the same connection is refused."""
    identity = make_identity(tmp_path / "a", coordinator.authority, "a")
    connection = http.client.HTTPSConnection(
        "127.0.0.1", coordinator.agents, context=client_context(identity)
    )
    for wanted in (400, 403):
        connection.request("GET", "/agent/v1/document")
        response = connection.getresponse()
        detail = msgspec.json.decode(response.read())["detail"]
        assert response.status == wanted, detail
        if wanted == 400:
            revoke_node(coordinator.state, "a")
    assert "certificate refused: spark-a was removed from this cluster" in detail
    connection.close()


def test_nobody_speaks_for_another_node(coordinator: SecureCoordinator, tmp_path: Path) -> None:
    identity = make_identity(tmp_path / "b", coordinator.authority, "b")
    context = client_context(identity)
    assert say_hello(coordinator, identity, "b").status == 200
    asked = "node=a&after=0.0&boot=x&run=y&seq=1&protocol=1"
    csr = openssl("req", "-new", "-key", str(identity / "node.key"), "-subj", "/CN=a", "-config", "/dev/null")
    report = {"caller": msgspec.to_builtins(caller("a", 2)), "wall": 0, "mono": 0}
    report["applied"] = {"term": 0, "revision": 0}
    requests: list[tuple[str, str, Any]] = [
        ("GET", f"/agent/v1/document?{asked}", None),
        ("POST", "/agent/v1/report", report),
        ("POST", "/agent/v1/certificate", msgspec.to_builtins(CertificateAsked("a", csr))),
    ]
    answers = [say_hello(coordinator, identity, "a")]
    for method, target, body in requests:
        answers.append(send_securely(coordinator.agents, method, target, context=context, body=body))
    for answer in answers:
        assert (answer.status, answer.json["code"]) == (403, "certificate-refused"), answer
        assert "it is b's, and the request is a's" in answer.json["detail"]
    states = {node["name"]: node["state"] for node in coordinator.ask("GET", "/v1/nodes").json}
    assert states["spark-a"] == "unknown", "nothing has changed"


def test_the_coordinators_own_certificate_opens_no_door(
    coordinator: SecureCoordinator, tmp_path: Path
) -> None:
    key, certificate = coordinator.authority.make_coordinator(time.time())
    (tmp_path / "node.key").write_text(key)
    (tmp_path / "node.crt").write_text(certificate)
    with pytest.raises(ssl.SSLError, match="ALERT"):
        say_hello(coordinator, tmp_path, "a")


def test_tokens_open_nothing_at_the_agents_port(coordinator: SecureCoordinator) -> None:
    with pytest.raises(ssl.SSLError, match="ALERT_CERTIFICATE_REQUIRED"):
        send_securely(
            coordinator.agents,
            "GET",
            "/agent/v1/document",
            context=client_context(None),
            headers={"authorization": f"Bearer {coordinator.token}"},
        )


def test_a_node_gets_its_next_certificate(coordinator: SecureCoordinator, tmp_path: Path) -> None:
    identity = make_identity(tmp_path / "a", coordinator.authority, "a", issued=time.time() - 300 * DAY)
    csr = openssl(
        "req", "-new", "-key", str(identity / "node.key"), "-subj", "/CN=root", "-config", "/dev/null"
    )
    answer = send_securely(
        coordinator.agents,
        "POST",
        "/agent/v1/certificate",
        context=client_context(identity),
        body=msgspec.to_builtins(CertificateAsked("a", csr)),
    )
    assert answer.status == 200
    fresh = x509.load_pem_x509_certificate(answer.json["certificate"].encode())
    names = fresh.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [name.value for name in names] == ["sparkd://node/a"]
    assert fresh.not_valid_after_utc.timestamp() > time.time() + 364 * DAY


def test_a_certificate_that_was_not_renewed_is_told_of_a_month_ahead(
    coordinator: SecureCoordinator, tmp_path: Path
) -> None:
    old = make_identity(tmp_path / "old", coordinator.authority, "a", issued=time.time() - 340 * DAY)
    assert say_hello(coordinator, old, "a").status == 200
    (verdict,) = verdicts(coordinator, "spark-a")
    assert (verdict["id"], verdict["severity"]) == ("CERTIFICATE_ENDS", "warn")
    fresh = make_identity(tmp_path / "fresh", coordinator.authority, "a")
    assert say_hello(coordinator, fresh, "a").status == 200
    assert verdicts(coordinator, "spark-a") == []


def test_what_follows_a_refusal_in_the_same_breath_is_not_read(
    coordinator: SecureCoordinator, tmp_path: Path
) -> None:
    identity = make_identity(tmp_path / "a", coordinator.authority, "a", issued=time.time() - 400 * DAY)
    request = b"GET /agent/v1/document HTTP/1.1\r\nhost: x\r\n\r\n"
    with (
        socket.create_connection(("127.0.0.1", coordinator.agents), PATIENCE_S) as plain,
        client_context(identity).wrap_socket(plain) as secure,
    ):
        secure.sendall(request * 50)
        received = b""
        while data := secure.recv(65536):
            received += data
    assert received.count(b"HTTP/1.1 403") == 1
    assert "refused a connection" not in coordinator.log, "the answer was the refusal"
    assert "Traceback" not in coordinator.log


def test_strangers_do_not_fill_the_log(coordinator: SecureCoordinator) -> None:
    for _ in range(20):
        with pytest.raises(ssl.SSLError):
            send_securely(coordinator.agents, "GET", "/", context=client_context(None))
    assert (
        coordinator.log.count("refused a connection from 127.0.0.1: peer did not return a certificate") == 1
    )


def shown(connection: "http.client.HTTPSConnection") -> x509.Certificate:
    connection.connect()
    der = connection.sock.getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der)


def test_the_coordinator_renews_its_own_certificate_without_a_restart(tmp_path: Path) -> None:
    one = SecureCoordinator(
        tmp_path, {"a": "spark-a"}, {"certificate_life_s": 0.6, "certificate_look_s": 0.1}
    )
    one.start()
    try:
        identity = make_identity(tmp_path / "a", one.authority, "a")
        context = client_context(identity)

        def connect() -> "http.client.HTTPSConnection":
            return http.client.HTTPSConnection("127.0.0.1", one.agents, context=context)

        kept = connect()
        first = shown(kept)
        other = connect()

        def is_new() -> bool:
            other.close()
            return shown(other).serial_number != first.serial_number

        until(is_new, "another certificate")
        for connection in (kept, other):
            connection.request("GET", "/agent/v1/document")
            assert connection.getresponse().status == 400, "both are served"
            connection.close()
    finally:
        one.end()


# What an agent makes of it.


def agent_of(coordinator: SecureCoordinator, folder: Path, identity: Path, **more: Any) -> AgentProcess:
    folder.mkdir()
    holder = read_roster(coordinator.state).holder
    agent = AgentProcess(folder, coordinator.agents_url, node="a", holder=holder, identity=identity, **more)
    agent.start()
    return agent


def state_of(coordinator: SecureCoordinator, name: str) -> str:
    nodes = coordinator.ask("GET", "/v1/nodes").json
    return str(next(node["state"] for node in nodes if node["name"] == name))


def test_an_agent_tries_a_list_of_addresses_and_renews_without_a_restart(
    coordinator: SecureCoordinator, tmp_path: Path
) -> None:
    """Issued 300 days ago, so two thirds are over. The key stays, the certificate becomes a new one."""
    identity = make_identity(tmp_path / "a", coordinator.authority, "a", issued=time.time() - 300 * DAY)
    old, key = (identity / "node.crt").read_text(), (identity / "node.key").read_text()
    nobody = f"https://127.0.0.1:{coordinator.rest}"  # plain HTTP: it speaks no TLS
    agent = agent_of(coordinator, tmp_path / "agent", identity, earlier_urls=("https://127.0.0.1:9", nobody))
    try:
        until(lambda: state_of(coordinator, "spark-a") == "alive", "a hello at the third address")
        assert "nothing listens" in agent.log or "cannot be reached" in agent.log
        assert "speaks no TLS" in agent.log
        until(lambda: (identity / "node.crt").read_text() != old, "a new certificate")
        until(lambda: "the certificate of this node was renewed" in agent.log, "a word about it")
        assert (identity / "node.key").read_text() == key
        assert agent.log.count("connected to") == 1, "beats went on over it"
        assert state_of(coordinator, "spark-a") == "alive"
    finally:
        agent.end()


def test_a_coordinator_whose_database_is_lost_outlives_the_lease_of_its_last_life(
    coordinator: SecureCoordinator, tmp_path: Path
) -> None:
    """Back within a moment, as a service manager does it: not one that ends as superseded and is started anew
    until the lease is over, with people told that nothing listens.
    """
    identity = make_identity(tmp_path / "a", coordinator.authority, "a")
    agent = agent_of(coordinator, tmp_path / "agent", identity)
    try:
        until(lambda: state_of(coordinator, "spark-a") == "alive", "a hello")
        coordinator.end()
        for left in coordinator.state.glob(f"{coordinator.database.name}*"):
            left.unlink()
        coordinator.launch()
        until(lambda: state_of(coordinator, "spark-a") == "alive", "a hello to the next life")
        assert "ends:" not in coordinator.log
        events = coordinator.ask("GET", "/v1/events?follow=false").json
        assert any("took term" in event["reason"] for event in events)
    finally:
        agent.end()


def test_a_certificate_at_its_very_end_is_renewed_when_the_coordinator_is_back(
    coordinator: SecureCoordinator, tmp_path: Path
) -> None:
    """It has ended, and lives on the grace that clocks get; the coordinator was away at the time."""
    issued = time.time() - 365 * DAY - DEFAULTS.clock_warn_s + 60
    identity = make_identity(tmp_path / "a", coordinator.authority, "a", issued=issued)
    old = (identity / "node.crt").read_text()
    coordinator.end()
    agent = agent_of(coordinator, tmp_path / "agent", identity)
    try:
        until(lambda: "cannot be reached" in agent.log, "the agent to find nobody")
        coordinator.launch()
        until(lambda: (identity / "node.crt").read_text() != old, "a new certificate")
        until(lambda: verdicts(coordinator, "spark-a") == [], "the new one to be shown")
        assert state_of(coordinator, "spark-a") == "alive"
        assert agent.log.count("connected to") == 1
    finally:
        agent.end()


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("foreign CA on the node", "certificate refused: that of 127.0.0.1:{port}"),
        ("foreign certificate", "certificate refused: 127.0.0.1:{port} says: unknown ca"),
        ("revoked", "certificate refused: spark-a was removed from this cluster"),
        ("expired", "certificate refused: its certificate is valid from"),
    ],
)
def test_an_agent_says_why_it_is_not_let_in(
    coordinator: SecureCoordinator, tmp_path: Path, case: str, said: str
) -> None:
    foreign = make_authority(tmp_path / "foreign", time.time())
    authority = foreign if case == "foreign certificate" else coordinator.authority
    issued = time.time() - (400 * DAY if case == "expired" else 0)
    identity = make_identity(tmp_path / "a", authority, "a", issued=issued)
    (identity / "ca.crt").write_text(foreign.pem if "on the node" in case else coordinator.authority.pem)
    if case == "revoked":
        revoke_node(coordinator.state, "a")
    agent = agent_of(coordinator, tmp_path / "agent", identity)
    try:
        text = said.format(port=coordinator.agents)
        until(lambda: text in agent.log, f"{text!r} in the agent's log")
        assert "reset" not in agent.log
    finally:
        agent.end()


class PastClock:
    def now(self) -> Instant:
        return Instant(time.monotonic(), time.time() - 3 * DAY - 3700)


class Speechless:
    """As much of an agent as a link needs to be refused."""

    def __init__(self, coordinator: SecureCoordinator, node: str) -> None:
        facts = NodeFacts(node, node, "127.0.0.1", "127.0.0.1")
        self._hello = Hello(caller(node), facts, "test", holder=read_roster(coordinator.state).holder)
        self.slow_facts = self

    async def fabric(self) -> None:
        return None

    async def images(self) -> tuple[str, ...]:
        return ()

    def hello(self, *_: object) -> Hello:
        return self._hello


def test_a_node_whose_clock_stands_in_the_past_is_told_so(
    coordinator: SecureCoordinator, tmp_path: Path
) -> None:
    """Our certificate is not valid yet for it: only the coordinator can say by how much its clock is off."""
    identity = make_identity(tmp_path / "a", coordinator.authority, "a")
    words = "clock of spark-a is off by -3 d 1 h against the coordinator's"

    async def run() -> None:
        agent: Any = Speechless(coordinator, "a")
        urls = (coordinator.agents_url,)
        link = Link(agent, urls, token=None, identity=Identity(identity), clock=PastClock())
        running = asyncio.create_task(link.run())
        async with asyncio.timeout(PATIENCE_S):
            while words not in link.state:
                await asyncio.sleep(0.02)
        running.cancel()

    asyncio.run(run())
    (verdict,) = verdicts(coordinator, "spark-a")
    assert verdict["id"] == "CLOCK_OFF"
    assert words in verdict["title"]
