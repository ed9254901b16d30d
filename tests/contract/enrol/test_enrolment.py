"""Whole enrolments over a real sshd, onto a node that is a folder."""

import getpass
import json
import os
import shutil
import socket
import stat
import subprocess
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from sparkd.enrol.conversation import NODE_PYTHON
from sparkd.enrol.enrolment import Enrolment, Outcome, run_all
from sparkd.enrol.host import Host, OnNode, SshHost, ThisHost
from sparkd.enrol.ssh import Login
from sparkd.enrol.target import SshSettings
from sparkd.errors import CoordinatorUnreachable
from tests.bed.coordinator import PATIENCE_S
from tests.bed.node_folder import NodeFolder, SigningCoordinator, Told, errand, make_stock
from tests.bed.ports import free_port
from tests.bed.sshd import SSHD, Script, Sshd, sshd

pytestmark = pytest.mark.skipif(
    not (SSHD and shutil.which("openssl") and Path(NODE_PYTHON).exists()), reason="openssh-server is needed"
)


@dataclass
class Bed:
    server: Sshd
    node: NodeFolder
    coordinator: SigningCoordinator

    def host(self, name: str = "spark-1", person: Script | None = None) -> Host:
        person = person or Script()
        (self.server.ssh / "config").write_text(f"Host *\n  HostName 127.0.0.1\n  Port {self.server.port}\n")
        route = SshSettings(self.server.home, system=self.server.folder).route(name)
        return SshHost(route, Login(person), person, self.node.place)

    def run(self, told: Told, *, dry_run: bool = False, without: str = "", name: str = "spark-1") -> Outcome:
        stock = make_stock(self.server.folder, without=without)
        work = errand(self.coordinator, stock, told, dry_run=dry_run)
        return Enrolment(self.host(name), work).run()


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    (tmp_path / "ssh").mkdir()
    with sshd(tmp_path / "ssh") as server:
        server.trust()
        yield Bed(server, NodeFolder(tmp_path / "node"), SigningCoordinator(tmp_path / "coordinator"))


def test_a_fresh_node_gets_all_it_needs_and_nothing_else(bed: Bed) -> None:
    told = Told()
    outcome = bed.run(told)
    assert outcome.failed == (), told.text
    found = bed.node.snapshot()
    folder = outcome_folder(bed)
    outside = {name for name in found if not name.startswith(f"opt/sparkd/{folder}/")}
    assert outside == {
        "opt/sparkd/current",
        "usr/local/bin/sparkd-agent",
        "var/lib/sparkd/agent/node-id",
        "etc/sparkd/agent.toml",
        "var/lib/sparkd/agent/tls/node.key",
        "var/lib/sparkd/agent/tls/node.crt",
        "var/lib/sparkd/agent/tls/ca.crt",
        "etc/systemd/system/sparkd-agent.service",
    }
    assert found["opt/sparkd/current"] == (0, folder)
    assert found["var/lib/sparkd/agent/tls/node.key"][0] == 0o600
    assert found["etc/sparkd/agent.toml"][0] == 0o600
    assert f"opt/sparkd/{folder}/lib/one.py" in found
    assert f"opt/sparkd/{folder}/lib/sparkd_agent/shim/__main__.py" in found
    assert f"opt/sparkd/{folder}/lib/sparkd/client.py" not in found
    assert bed.node.calls == ["daemon-reload", "enable sparkd-agent.service", "start sparkd-agent.service"]
    config = tomllib.loads((bed.node.root / "etc/sparkd/agent.toml").read_text())
    assert config["node"]["name"] == "spark-1"
    assert config["node"]["id"] == outcome.node_id
    assert config["coordinator"]["holder"] == bed.coordinator.holder
    assert bed.coordinator.nodes == {outcome.node_id: "spark-1"}


def outcome_folder(bed: Bed) -> str:
    return (bed.node.root / "opt/sparkd/current").readlink().name


def test_the_certificate_is_for_the_key_that_was_made_on_the_node(bed: Bed) -> None:
    bed.run(Told())
    tls = bed.node.root / "var/lib/sparkd/agent/tls"
    words = ["openssl", "pkey", "-in", str(tls / "node.key"), "-pubout"]
    public = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    certificate = x509.load_pem_x509_certificate((tls / "node.crt").read_bytes())
    shown = certificate.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    assert shown.decode() == public


def test_asked_again_everything_is_the_same_and_the_agent_is_left_alone(bed: Bed) -> None:
    bed.run(Told())
    before, calls = bed.node.snapshot(), bed.node.calls
    told = Told()
    outcome = bed.run(told)
    assert outcome.failed == ()
    assert bed.node.snapshot() == before
    assert bed.node.calls == calls
    assert told.steps("done") == ["probe", "verify"]


def test_a_dry_run_names_every_file_and_changes_none(bed: Bed) -> None:
    before = bed.node.snapshot()
    told = Told()
    outcome = bed.run(told, dry_run=True)
    assert outcome.failed == ()
    assert bed.node.snapshot() == before == {}
    assert bed.node.calls == []
    assert bed.coordinator.nodes == {}
    said = told.text
    bed.run(Told())
    for name in bed.node.snapshot():
        place = name if not name.startswith("opt/sparkd/0") else "/".join(name.split("/")[:3])
        assert place.replace("ca.crt", "node.crt and ca.crt") in said or place in said, name


@pytest.mark.parametrize("broken_at", ["start", "certificate"])
def test_what_broke_off_is_resumed(bed: Bed, broken_at: str) -> None:
    if broken_at == "start":
        (bed.node.books / "broken").write_text("no such unit")
    else:
        bed.coordinator.revoked = {"x"}
        bed.coordinator.enrol = _refuse  # type: ignore[method-assign]
    first = Told()
    outcome = bed.run(first)
    assert outcome.failed
    assert outcome.failed[0].startswith(broken_at)
    assert first.steps("failed") == [broken_at]
    if broken_at == "start":
        (bed.node.books / "broken").unlink()
    else:
        del bed.coordinator.enrol
    identity = (bed.node.root / "var/lib/sparkd/agent/node-id").read_text()
    key = (bed.node.root / "var/lib/sparkd/agent/tls/node.key").read_text()
    second = Told()
    outcome = bed.run(second)
    assert outcome.failed == (), second.text
    assert "copy" in second.steps("same")
    assert (bed.node.root / "var/lib/sparkd/agent/node-id").read_text() == identity
    assert (bed.node.root / "var/lib/sparkd/agent/tls/node.key").read_text() == key


def _refuse(node_id: str, name: str, csr: str) -> str:
    raise CoordinatorUnreachable("no coordinator")


def test_a_damaged_copy_is_replaced_whole(bed: Bed) -> None:
    bed.run(Told())
    whole = bed.node.snapshot()
    victim = bed.node.root / "opt/sparkd" / outcome_folder(bed) / "lib/one.py"
    victim.write_text("half")
    told = Told()
    outcome = bed.run(told)
    assert outcome.failed == (), told.text
    assert "copy" in told.steps("done")
    assert bed.node.snapshot() == whole
    assert not list((bed.node.root / "opt/sparkd").glob(".incoming*"))


def test_what_an_interrupted_copy_left_is_cleared(bed: Bed) -> None:
    left = bed.node.root / "opt/sparkd/.incoming-abc/lib"
    left.mkdir(parents=True)
    (left / "half").write_text("half")
    assert bed.run(Told()).failed == ()
    assert not left.exists()


def test_a_missing_wheel_is_named_before_anything_is_changed(bed: Bed) -> None:
    told = Told()
    outcome = bed.run(told, without="two")
    assert "no wheel of two 1.0" in outcome.failed[0]
    assert "pip download" in outcome.failed[0]
    assert bed.node.snapshot() == {}
    assert bed.coordinator.nodes == {}


def test_a_node_of_another_coordinator_is_refused_by_its_name_and_left_as_it_is(bed: Bed) -> None:
    bed.run(Told())
    before, calls = bed.node.snapshot(), bed.node.calls
    other = SigningCoordinator(bed.server.folder / "other", holder="another-holder")
    told = Told()
    outcome = Bed(bed.server, bed.node, other).run(told)
    assert "belongs to another coordinator, holder-of-tests" in outcome.failed[0]
    assert bed.node.snapshot() == before
    assert bed.node.calls == calls
    assert other.nodes == {}


def test_a_removed_node_comes_back_under_a_new_id(bed: Bed) -> None:
    first = bed.run(Told()).node_id
    assert first is not None
    del bed.coordinator.nodes[first]
    bed.coordinator.revoked.add(first)
    second = bed.run(Told())
    assert second.failed == ()
    assert second.node_id != first
    assert (bed.node.root / "var/lib/sparkd/agent/node-id").read_text().strip() == second.node_id
    assert bed.coordinator.nodes == {second.node_id: "spark-1"}


def test_an_agent_that_is_not_heard_from_is_told_with_its_own_words(bed: Bed) -> None:
    bed.coordinator.deaf = True
    work = errand(bed.coordinator, make_stock(bed.server.folder), Told(), enrol_verify_s=0.5)
    outcome = Enrolment(bed.host(), work).run()
    assert outcome.failed[0].startswith("verify: not heard from")
    assert "its service is active" in outcome.failed[0]


def test_a_coordinator_out_of_reach_is_told_before_anything_is_changed(bed: Bed) -> None:
    bed.coordinator.urls = (f"https://127.0.0.1:{free_port()}",)
    outcome = bed.run(Told())
    assert "cannot reach the coordinator" in outcome.failed[0]
    assert "7071 must be open" in outcome.failed[0]
    assert bed.node.snapshot() == {}


def test_one_address_that_answers_is_enough_and_gives_the_node_its_own(bed: Bed) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        bed.coordinator.urls = (f"https://127.0.0.1:{free_port()}", f"https://127.0.0.1:{port}")
        outcome = bed.run(Told())
    assert outcome.failed == ()
    assert outcome.probe is not None
    assert outcome.probe.address == "127.0.0.1"


def test_one_machine_under_two_names_is_one_node_and_the_failure_stops_no_other(bed: Bed) -> None:
    told = Told()
    work = errand(bed.coordinator, make_stock(bed.server.folder), told)
    hosts = [bed.host("spark-1"), bed.host("spark-2")]
    outcomes = run_all([Enrolment(host, work) for host in hosts], wait)
    good = [outcome for outcome in outcomes if not outcome.failed]
    (bad,) = (outcome for outcome in outcomes if outcome.failed)
    assert len(good) == 1
    assert f"the same machine as {good[0].name}" in bad.failed[0]
    assert set(bed.coordinator.nodes.values()) == {good[0].name}


def wait(is_busy: Callable[[], bool]) -> None:
    """For a person with nothing to say."""
    end = time.monotonic() + PATIENCE_S
    while is_busy():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_fault_of_our_own_on_one_machine_stops_no_other(bed: Bed) -> None:
    class Broken(Host):
        name = "broken"

        def open(self) -> AbstractContextManager[OnNode]:
            raise ZeroDivisionError("a fault")

    told = Told()
    work = errand(bed.coordinator, make_stock(bed.server.folder), told)
    broken, good = run_all([Enrolment(Broken(), work), Enrolment(bed.host(), work)], wait)
    assert "a fault of sparkd's own: ZeroDivisionError" in broken.failed[0]
    assert good.failed == ()


def test_no_secret_is_in_an_argument_or_in_what_is_told(bed: Bed) -> None:
    """The node's key and what sudo is told travel in the channel; `ps` on the node sees constants."""
    seen: set[str] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            for entry in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    seen.add(entry.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
                except OSError:
                    continue

    thread = threading.Thread(target=watch)
    thread.start()
    told = Told()
    try:
        bed.run(told)
    finally:
        over.set()
        thread.join()
    key = "".join((bed.node.root / "var/lib/sparkd/agent/tls/node.key").read_text().splitlines()[1:-1])
    assert any(NODE_PYTHON in line for line in seen)
    for line in (*seen, told.text, bed.server.log):
        assert "PRIVATE KEY" not in line
        assert key[:40] not in line


def test_this_machine_needs_no_ssh(tmp_path: Path) -> None:
    node, coordinator = NodeFolder(tmp_path / "node"), SigningCoordinator(tmp_path / "coordinator")
    told = Told()
    host = ThisHost("here", getpass.getuser(), str(tmp_path), NODE_PYTHON, node.place)
    outcome = Enrolment(host, errand(coordinator, make_stock(tmp_path), told)).run()
    assert outcome.failed == (), told.text
    assert coordinator.nodes == {outcome.node_id: "here"}


def test_what_is_found_on_the_node(bed: Bed) -> None:
    root = bed.node.root
    home = bed.server.home
    (home / ".cache/huggingface/hub").mkdir(parents=True)
    site = home / "vllm/lib/python3.12/site-packages/vllm-0.32.0.dist-info"
    site.mkdir(parents=True)
    (home / "vllm/bin").mkdir()
    (home / "vllm/bin/python").touch()
    net = root / "sys/class/net/enp1s0f0np0"
    net.mkdir(parents=True)
    for name, text in (("operstate", "up\n"), ("mtu", "9000\n"), ("speed", "200000\n")):
        (net / name).write_text(text)
    (root / "sys/class/infiniband/rocep1s0f0/device/net/enp1s0f0np0").mkdir(parents=True)
    listener = serve_docker(root / "var/run/docker.sock")
    try:
        host = ThisHost("here", "ann", str(home), NODE_PYTHON, bed.node.place)
        told = Told()
        outcome = Enrolment(host, errand(bed.coordinator, make_stock(bed.server.folder), told)).run()
    finally:
        listener.close()
    probe = outcome.probe
    assert probe is not None, told.text
    assert [engine.version for engine in probe.engines] == ["0.32.0"]
    assert probe.model_roots == (str(home / ".cache/huggingface/hub"),)
    assert [(one.interface, one.rdma, one.speed_mbit) for one in probe.fabric] == [
        ("enp1s0f0np0", "rocep1s0f0", 200000)
    ]
    assert [(one.name, one.image) for one in probe.containers] == [("vllm_node", "vllm-node:latest")]
    assert probe.images == ("vllm-node:latest",)
    config = tomllib.loads((root / "etc/sparkd/agent.toml").read_text())
    assert config["engine"]["default"]["python"] == str(home / "vllm/bin/python")
    assert config["models"]["roots"] == [str(home / ".cache/huggingface/hub")]
    assert config["rank"]["user"] == "ann"


def serve_docker(place: Path) -> socket.socket:
    """Two answers of a Docker Engine."""
    place.parent.mkdir(parents=True, exist_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(place))
    listener.listen()
    answers = {
        "/containers/json": [{"Id": "0" * 64, "Names": ["/vllm_node"], "Image": "vllm-node:latest"}],
        "/images/json": [{"RepoTags": ["vllm-node:latest", "ubuntu:24.04"]}, {"RepoTags": None}],
    }

    def serve() -> None:
        while True:
            try:
                link, _ = listener.accept()
            except OSError:
                return
            with link:
                target = link.recv(4096).split()[1].decode()
                body = json.dumps(answers[target]).encode()
                link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    threading.Thread(target=serve, daemon=True).start()
    return listener


def test_files_of_the_copy_may_be_read_but_not_written_by_others(bed: Bed) -> None:
    """Ranks run as users of their own, and find a plug-in there."""
    host = ThisHost("here", getpass.getuser(), str(bed.server.home), NODE_PYTHON, bed.node.place)
    before = os.umask(0o077)
    try:
        outcome = Enrolment(host, errand(bed.coordinator, make_stock(bed.server.folder), Told())).run()
    finally:
        os.umask(before)
    assert outcome.failed == ()
    for place in (bed.node.root / "opt/sparkd" / outcome_folder(bed)).rglob("*"):
        mode = place.stat().st_mode
        assert not mode & (stat.S_IWGRP | stat.S_IWOTH), place
        assert mode & stat.S_IROTH, place
        assert place.is_file() or mode & stat.S_IXOTH, place
