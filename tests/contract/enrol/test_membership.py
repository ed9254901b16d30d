"""Enrolling and removing nodes while a real coordinator runs."""

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sparkd.client import Client
from sparkd.coordinator.tokens import mint_token
from sparkd.enrol.roster import read_roster
from sparkd.errors import Conflict, Forbidden, NotFound, UsageError
from sparkd.records.report import Caller, Hello, NodeFacts
from tests.bed.coordinator import Answer
from tests.bed.secure import SecureCoordinator, client_context, openssl, send_securely

ID, OTHER = "0123456789abcdef", "fedcba9876543210"


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[SecureCoordinator]:
    one = SecureCoordinator(tmp_path)
    one.start()
    try:
        yield one
    finally:
        one.end()


@pytest.fixture
def client(coordinator: SecureCoordinator) -> Client:
    return Client(f"http://127.0.0.1:{coordinator.rest}", coordinator.token)


def make_csr(folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    key = str(folder / "node.key")
    openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", key)
    return openssl("req", "-new", "-key", key, "-subj", "/CN=node", "-config", "/dev/null")


def hello(coordinator: SecureCoordinator, folder: Path, node: str) -> Answer:
    facts = NodeFacts(node, "x", "127.0.0.1", "127.0.0.1")
    said = Hello(Caller(node, "boot", "run", 1), facts, "test", holder=read_roster(coordinator.state).holder)
    return send_securely(
        coordinator.agents,
        "POST",
        "/agent/v1/hello",
        context=client_context(folder),
        body=msgspec.to_builtins(said),
    )


def test_a_node_that_was_enrolled_comes_in_at_once_and_a_removed_one_no_more(
    coordinator: SecureCoordinator, client: Client, tmp_path: Path
) -> None:
    folder = tmp_path / "node"
    given = client.enrol_node(ID, "spark-1", make_csr(folder))
    (folder / "node.crt").write_text(given.certificate)
    assert hello(coordinator, folder, ID).status == 200
    assert [(node.name, node.state) for node in client.nodes()] == [("spark-1", "alive")]
    client.remove_node("spark-1")
    assert client.nodes() == ()
    refused = hello(coordinator, folder, ID)
    assert refused.status == 403
    assert "was removed" in refused.json["detail"]
    # Over a restart as well.
    coordinator.end()
    coordinator.start()
    assert hello(coordinator, folder, ID).status == 403
    assert client.membership().revoked == (ID,)


def test_what_a_node_needs_to_know(coordinator: SecureCoordinator, client: Client, tmp_path: Path) -> None:
    client.enrol_node(ID, "spark-1", make_csr(tmp_path / "node"))
    known = client.membership()
    assert known.agent_urls == (coordinator.agents_url,)
    assert known.holder == read_roster(coordinator.state).holder
    assert known.authority == coordinator.authority.pem
    assert known.nodes == {ID: "spark-1"}


def test_the_same_request_again_does_no_harm_and_a_name_has_one_owner(client: Client, tmp_path: Path) -> None:
    csr = make_csr(tmp_path / "node")
    client.enrol_node(ID, "spark-1", csr)
    client.enrol_node(ID, "spark-1", csr)
    with pytest.raises(Conflict, match="called spark-1 is enrolled already"):
        client.enrol_node(OTHER, "spark-1", csr)
    assert [node.name for node in client.nodes()] == ["spark-1"]


def test_a_removed_id_never_comes_back(client: Client, tmp_path: Path) -> None:
    csr = make_csr(tmp_path / "node")
    client.enrol_node(ID, "spark-1", csr)
    client.remove_node(ID)
    with pytest.raises(Conflict, match="was removed"):
        client.enrol_node(ID, "spark-1", csr)
    client.enrol_node(OTHER, "spark-1", csr)
    with pytest.raises(NotFound, match=r"known: spark-1"):
        client.remove_node("spark-7")


@pytest.mark.parametrize(
    ("node_id", "name", "csr"),
    [
        ("../../etc", "spark-1", None),
        ("0123", "spark-1", None),
        (ID, "", None),
        (ID, "../x", None),
        (ID, "a\nb", None),
        (ID, "spark-1", "no request"),
        (ID, "spark-1", ""),
    ],
)
def test_nonsense_is_refused_and_leaves_no_trace(
    client: Client, tmp_path: Path, node_id: str, name: str, csr: str | None
) -> None:
    with pytest.raises(UsageError):
        client.enrol_node(node_id, name, make_csr(tmp_path / "node") if csr is None else csr)
    assert client.nodes() == ()
    assert client.membership().nodes == {}


@pytest.mark.parametrize("scope", ["read", "operate"])
def test_only_an_admin_decides_who_belongs_here(
    coordinator: SecureCoordinator, client: Client, tmp_path: Path, scope: Any
) -> None:
    csr = make_csr(tmp_path / "node")
    client.enrol_node(ID, "spark-1", csr)
    weak = Client(f"http://127.0.0.1:{coordinator.rest}", mint_token(coordinator.state, "weak", scope))
    with pytest.raises(Forbidden):
        weak.enrol_node(OTHER, "spark-2", csr)
    with pytest.raises(Forbidden):
        weak.remove_node("spark-1")
    assert weak.membership().nodes == {ID: "spark-1"}


def test_a_certificate_that_was_given_to_another_key_is_useless(
    coordinator: SecureCoordinator, client: Client, tmp_path: Path
) -> None:
    given = client.enrol_node(ID, "spark-1", make_csr(tmp_path / "node"))
    thief = tmp_path / "thief"
    make_csr(thief)
    (thief / "node.crt").write_text(given.certificate)
    with pytest.raises(ssl.SSLError):
        hello(coordinator, thief, ID)
