import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sparkd.enrol.authority import Authority, make_authority
from sparkd.enrol.probe import FoundAgent, Probe, read_probe
from sparkd.enrol.steps import Cluster, Goal, merge_config, plan, refusals
from sparkd.errors import EnrolmentFailed
from sparkd.records.defaults import DEFAULTS
from sparkd.toml_text import toml_text

NOW = 1_800_000_000.0
FRESH = Probe(
    hostname="promaxgb10",
    system="Linux",
    distribution="Ubuntu 24.04.3 LTS",
    kernel="6.14.0-1013-nvidia",
    machine="aarch64",
    libc=("glibc", "2.39"),
    python=(3, 12, 3),
    python_path="/usr/bin/python3.12",
    free_bytes=100 << 30,
)
CLUSTER = Cluster("holder-1", ("https://10.0.0.9:7071",), "CA", {})
CONFIG = {
    "node": {"id": "id-1", "name": "spark-1", "address": "10.0.0.1"},
    "coordinator": {"holder": "holder-1", "urls": ["https://10.0.0.9:7071"]},
    "engine": {"default": {"python": "/home/ann/vllm/bin/python"}},
}


def goal(cluster: Cluster = CLUSTER, config: Mapping[str, Mapping[str, Any]] = CONFIG) -> Goal:
    return Goal("spark-1", "0.1.0-aaa", 2_000_000, "[Unit]\n", cluster, config)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("ca"), NOW)


def signed(authority: Authority, at: float) -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    csr = x509.CertificateSigningRequestBuilder(subject_name=x509.Name([])).sign(key, hashes.SHA256())
    return authority.sign_node(csr.public_bytes(serialization.Encoding.PEM).decode(), "id-1", "spark-1", at)


def enrolled(authority: Authority, at: float = NOW) -> tuple[Probe, Cluster]:
    """A node as a whole enrolment leaves it."""
    agent = FoundAgent(
        current="0.1.0-aaa",
        folders=("0.1.0-aaa",),
        node_id="id-1",
        config=CONFIG,
        key=True,
        certificate=signed(authority, at),
        authority=authority.pem,
        unit="[Unit]\n",
        active=True,
        enabled=True,
    )
    cluster = replace(CLUSTER, authority=authority.pem, nodes={"id-1": "spark-1"})
    return replace(FRESH, agent=agent), cluster


def test_a_fresh_machine_gets_everything_and_each_change_is_named() -> None:
    assert refusals(FRESH, "spark-1", CLUSTER) == ()
    steps = plan(FRESH, goal(), NOW)
    assert [step.name for step in steps if not step.done] == [
        "copy",
        "identity",
        "certificate",
        "config",
        "unit",
        "link",
        "start",
        "verify",
    ]
    changes = "\n".join(change for step in steps for change in step.changes)
    for place in (
        "/opt/sparkd/0.1.0-aaa",
        "/opt/sparkd/current",
        "/var/lib/sparkd/agent/node-id",
        "/var/lib/sparkd/agent/tls/node.key",
        "/etc/sparkd/agent.toml",
        "/etc/systemd/system/sparkd-agent.service",
    ):
        assert place in changes


def test_where_everything_is_done_nothing_is_changed(authority: Authority) -> None:
    probe, cluster = enrolled(authority)
    assert refusals(probe, "spark-1", cluster) == ()
    assert [step.name for step in plan(probe, goal(cluster), NOW) if not step.done] == ["verify"]
    assert not any(step.changes for step in plan(probe, goal(cluster), NOW))


@pytest.mark.parametrize(
    ("change", "step"),
    [
        ({"folders": ()}, "copy"),
        ({"node_id": None}, "identity"),
        ({"key": False}, "certificate"),
        ({"certificate": None}, "certificate"),
        ({"certificate": "no certificate"}, "certificate"),
        ({"authority": "an older CA"}, "certificate"),
        ({"config": None}, "config"),
        ({"config": {"node": {}}}, "config"),
        ({"unit": "[Unit]\nold"}, "unit"),
        ({"current": "0.0.9-bbb"}, "link"),
        ({"active": False}, "start"),
        ({"enabled": False}, "start"),
    ],
)
def test_an_enrolment_that_broke_off_goes_on_where_it_broke(
    authority: Authority, change: dict[str, Any], step: str
) -> None:
    probe, cluster = enrolled(authority)
    probe = replace(probe, agent=replace(probe.agent, **change))
    todo = [one.name for one in plan(probe, goal(cluster), NOW) if not one.done]
    assert step in todo
    # Whatever was changed, the agent that runs does not know of it.
    assert "start" in todo


def test_an_old_certificate_is_replaced_and_a_removed_id_too(authority: Authority) -> None:
    probe, cluster = enrolled(authority, at=NOW - DEFAULTS.certificate_life_s)
    assert "certificate" in [step.name for step in plan(probe, goal(cluster), NOW) if not step.done]
    probe, cluster = enrolled(authority)
    gone = replace(cluster, nodes={}, revoked=frozenset({"id-1"}))
    todo = [step.name for step in plan(probe, goal(gone), NOW) if not step.done]
    assert {"identity", "certificate", "start"} <= set(todo)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"machine": "riscv64"}, "riscv64"),
        ({"system": "Darwin"}, "Darwin"),
        ({"libc": ("", "")}, "C library"),
        ({"python": (3, 10, 12)}, "3.10.12"),
        ({"python": (3, 99, 0)}, "3.99.0"),
        ({"missing_modules": ("sqlite3",)}, "sqlite3"),
        ({"has_systemd": False}, "systemd"),
        ({"has_openssl": False}, "openssl"),
        ({"is_root": False}, "sudo"),
        ({"free_bytes": 5 << 20}, "5 MiB free"),
        ({"unreachable": ("10.0.0.9:7071: No route to host",)}, "No route to host"),
        ({"agent": FoundAgent(config={"coordinator": {"holder": "holder-2"}})}, "holder-2"),
        (
            {
                "agent": FoundAgent(
                    config={"coordinator": {"holder": "h2", "urls": ["https://10.9.9.9:7071"]}}
                )
            },
            "another coordinator, h2 at https://10.9.9.9:7071",
        ),
        # What its owner wrote there, perhaps for another coordinator, is not overwritten.
        ({"agent": FoundAgent(config={})}, "no TOML"),
    ],
)
def test_what_is_refused_says_why(change: dict[str, Any], words: str) -> None:
    found = refusals(replace(FRESH, **change), "spark-1", CLUSTER)
    assert len(found) == 1
    assert words in found[0]


def test_all_refusals_are_told_not_the_first() -> None:
    probe = replace(FRESH, machine="riscv64", python=(3, 8, 1), has_systemd=False)
    assert len(refusals(probe, "spark-1", CLUSTER, ("msgspec 1 for Python 3.8",))) == 4


def test_a_name_belongs_to_one_machine_and_a_machine_has_one_name() -> None:
    taken = replace(CLUSTER, nodes={"id-7": "spark-1"})
    assert "nodes remove spark-1" in refusals(FRESH, "spark-1", taken)[0]
    mine = replace(FRESH, agent=FoundAgent(node_id="id-7"))
    assert refusals(mine, "spark-1", taken) == ()
    assert "enrolled as spark-1 already" in refusals(mine, "spark-one", taken)[0]


def test_one_address_of_several_is_enough() -> None:
    cluster = replace(CLUSTER, urls=("https://10.0.0.9:7071", "https://192.168.0.9:7071"))
    assert refusals(replace(FRESH, unreachable=("192.168.0.9:7071: refused",)), "spark-1", cluster) == ()


def test_what_the_owner_wrote_into_the_configuration_stays() -> None:
    owner = {
        "node": {"id": "old", "name": "old", "address": "10.9.9.9", "fabric_interface": "enp1s0f0np0"},
        "coordinator": {"holder": "holder-1", "urls": ["https://old:7071"]},
        "engine": {"default": {"python": "/opt/mine/bin/python"}},
        "rank": {"env": {"NCCL_DEBUG": "INFO"}},
    }
    merged = merge_config(owner, CONFIG)
    assert merged["node"] == {**owner["node"], "id": "id-1", "name": "spark-1"}
    assert merged["coordinator"]["urls"] == ["https://10.0.0.9:7071"]
    assert merged["engine"] == owner["engine"]
    assert merged["rank"] == owner["rank"]
    assert merge_config(merged, CONFIG) == merged


@pytest.mark.parametrize(
    "hostile", ["plain", 'quo"te', "back\\slash", "new\nline", "del\x7f", "[table]", "ünïcode", "'"]
)
def test_the_configuration_is_written_as_it_is_read(tmp_path: Path, hostile: str) -> None:
    models: dict[str, Any] = {"roots": [hostile]}
    document = {"node": {"name": hostile, "n": 3}, "rank": {"env": {hostile: hostile}}, "models": models}
    assert tomllib.loads(toml_text(document)) == document


def test_an_answer_that_is_no_probe_is_said_so() -> None:
    with pytest.raises(EnrolmentFailed, match="spark-1"):
        read_probe("spark-1", {"hostname": 3})
