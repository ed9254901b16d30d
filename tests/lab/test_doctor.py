"""`sparkd doctor` on whole machines: nothing to say of healthy ones, and each planted fault by its name."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import msgspec
import pytest

from sparkd.records.preflight import Preflight
from sparkd.records.verdict import Severity, Verdict
from tests.bed.stand_in import VERSION
from tests.bed.weights import checkpoint
from tests.lab import software
from tests.lab.cluster import Cluster
from tests.lab.faults import disk_full
from tests.lab.node import Node, until

MODEL = "/opt/checkpoints/m"
SHARD = f"{MODEL}/model-00002-of-00003.safetensors"
COPY = f"on a: rsync -aH --partial --mkpath --info=progress2 {MODEL}/ 10.78.0.3:{MODEL}/"
HOSTS = "/etc/hosts"
PORT = 8155


@pytest.fixture(scope="module")
def on_disk(four: Cluster) -> str:
    """A model on each node's own disk (the tiny one is shared by all), and names that lead somewhere."""
    for node in four.nodes:
        checkpoint(node.at(MODEL))
        node.write(HOSTS, f"{node.mgmt.address} {node.name}\n")
    return MODEL


def doctor(four: Cluster, *words: str, ok: Sequence[int] = (0, 1)) -> Preflight:
    told = four.sparkd("doctor", *words, "-o", "json", ok=ok)
    return msgspec.json.decode(told, type=Preflight)


def worth_a_word(found: Preflight) -> list[Verdict]:
    return [one for one in found.verdicts if one.severity is not Severity.NOTE]


def test_healthy_nodes_give_no_warning(four: Cluster, on_disk: str) -> None:
    alone = doctor(four)
    assert [member.name for member in alone.members] == ["a", "b", "c", "d"]
    launch = doctor(four, "tiny", "--set", f"model.path={on_disk}")
    for found in (alone, launch):
        assert not found.verdicts
        assert all(member.machine is not None for member in found.members)
    text = four.sparkd("doctor", "tiny")
    assert "nothing blocks tiny" in text


@contextmanager
def half_downloaded(node: Node) -> Iterator[None]:
    whole = node.at(SHARD).read_bytes()
    os.truncate(node.at(SHARD), len(whole) * 6 // 10)
    try:
        yield
    finally:
        node.at(SHARD).write_bytes(whole)


@contextmanager
def another_vllm(node: Node) -> Iterator[None]:
    (site,) = node.at(f"{software.STAND_IN}/lib").glob("python*/site-packages")
    mine, other = site / f"vllm-{VERSION}.dist-info", site / "vllm-0.31.7.dist-info"
    mine.rename(other)
    try:
        yield
    finally:
        other.rename(mine)


@contextmanager
def running(node: Node, unit: str, shows: str, *argv: str) -> Iterator[None]:
    """A program of somebody else's, until it `shows` in the node's processes or listeners."""
    look = "tr '\\0' ' ' < /proc/$(systemctl show -p MainPID --value \"$0\")/cmdline; ss -tln"
    node.run("systemd-run", "-q", "--collect", f"--unit={unit}", "--property=Type=exec", *argv)
    until(lambda: shows in node.run("bash", "-c", look, unit).stdout, f"{shows} to show")
    try:
        yield
    finally:
        node.run("systemctl", "stop", unit)


def port_held(node: Node) -> AbstractContextManager[None]:
    listen = (
        f"import socket, time; s = socket.socket(); s.bind(('0.0.0.0', {PORT})); s.listen(); time.sleep(999)"
    )
    return running(node, "holder", f":{PORT}", software.PYTHON, "-c", listen)


def called(title: str) -> tuple[str, ...]:
    """A process that does nothing under that title."""
    return ("/bin/bash", "-c", 'exec -a "$0" sleep 999', title)


def orphan(node: Node) -> AbstractContextManager[None]:
    return running(node, "orphan", "VLLM::EngineCore 999", *called("VLLM::EngineCore"))


def ray(node: Node) -> AbstractContextManager[None]:
    return running(node, "ray", "raylet 999", *called("/usr/lib/ray/raylet"))


@contextmanager
def stale_shm(node: Node) -> Iterator[None]:
    file = "/dev/shm/vllm_offload_2510ed76.mmap"
    node.run("truncate", "--size=300M", file)
    node.run("touch", "--date=2 hours ago", file)
    try:
        yield
    finally:
        node.run("rm", file)


@contextmanager
def on_loopback(node: Node) -> Iterator[None]:
    node.run("tee", HOSTS, feed=f"127.0.1.1 {node.name}\n")
    try:
        yield
    finally:
        node.run("tee", HOSTS, feed=f"{node.mgmt.address} {node.name}\n")


@dataclass(frozen=True)
class Fault:
    id: str
    severity: Severity
    plant: Callable[[Node], AbstractContextManager[None]]
    says: str
    do: str
    node: str = "b"


FAULTS = [
    Fault("HALF_DOWNLOAD", Severity.BLOCK, half_downloaded, "(60%)", COPY),
    Fault("ENGINE_SKEW", Severity.BLOCK, another_vllm, "vLLM: 0.31.7 on b", "[engine.default]"),
    Fault("PORT_IN_USE", Severity.BLOCK, port_held, "python3", "--set api.port", node="a"),
    Fault("DISK_FULL", Severity.BLOCK, disk_full, "0 MiB of 256", "du -xh"),
    Fault("STALE_SHM", Severity.WARN, stale_shm, "vllm_offload_2510ed76.mmap", "remove these files"),
    Fault("GLOO_LOOPBACK", Severity.NOTE, on_loopback, "b resolves to 127.0.1.1", "hosts of b: 10.78.0.3 b"),
    Fault("ORPHAN_ENGINECORE", Severity.BLOCK, orphan, "VLLM::EngineCore", "on b: kill -9 "),
    Fault("RAY_MEMMON", Severity.BLOCK, ray, "/usr/lib/ray/raylet", "on b: ray stop"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_a_planted_fault_is_named_with_its_remedy(four: Cluster, on_disk: str, fault: Fault) -> None:
    asked = ("tiny", "--nodes", "a,b", "--set", f"model.path={on_disk}", "--set", f"api.port={PORT}")
    with fault.plant(four[fault.node]):
        found = doctor(four, *asked)
        told = [one for one in found.verdicts if one.id == fault.id]
        assert [(one.node, one.severity) for one in told] == [(fault.node, fault.severity)], found.verdicts
        assert fault.says in told[0].evidence
        assert fault.do in told[0].remedy
        others = [one for one in worth_a_word(found) if one.id != fault.id]
        assert not others, "one fault, one finding"
        code = four.head.run("sparkd", "doctor", *asked, ok=(0, 1)).returncode
        assert code == (1 if fault.severity is Severity.BLOCK else 0)
    assert not worth_a_word(doctor(four, *asked)), "it is cured"


def test_one_byte_of_a_shard_is_found_by_its_hash_alone(four: Cluster, on_disk: str) -> None:
    asked = ("tiny", "--nodes", "a,b,c", "--set", "layout.tp=3", "--set", f"model.path={on_disk}")
    shard = four["b"].at(SHARD)
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1] + b"x")
    try:
        assert not worth_a_word(doctor(four, *asked))
        (told,) = worth_a_word(doctor(four, *asked, "--hash"))
    finally:
        shard.write_bytes(whole)
    assert (told.id, told.node) == ("CHECKPOINT_BYTES", "b")
    assert told.remedy.startswith(f'on b: rm "$(readlink -f {SHARD})"; then on a: rsync')
    assert not worth_a_word(doctor(four, *asked, "--hash"))


def test_up_is_kept_from_starting_until_the_finding_is_waived(
    four: Cluster, on_disk: str, name: str, up: Callable[..., None]
) -> None:
    asked = ("--nodes", "a,b", "--set", f"model.path={on_disk}")
    with half_downloaded(four["b"]):
        told = four.sparkd("up", "tiny", "--name", name, *asked, ok=(1,))
        assert "HALF_DOWNLOAD on b" in told
        assert "rsync -aH --partial" in told
        assert not four.leaders(four["a"])
        up(*asked, "--force", "HALF_DOWNLOAD")
    assert [(one.id, one.waived) for one in four.client.deployment(name).verdicts if one.waived] == [
        ("HALF_DOWNLOAD", True)
    ]
    assert any(event.kind == "waived" for event in four.events(name))
    assert not doctor(four).verdicts, "the ranks that run are its own"
