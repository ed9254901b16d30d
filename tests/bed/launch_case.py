"""A launch as a case tells it: a profile and Sparks, judged by the real planner and preflight.

`launch.yaml`:

    profile: {layout: {tp: 2}, env: {…}}      # what the case is about; the rest is a small profile's
    sparks:                                   # in rank order
      - cables: {0: [[192.168.100.1/24], [192.168.101.1/24]]}    # by port: addresses of half A, of half B
        gids: {rocep1s0f0: {4: [RoCE v2, 192.168.100.1]}}        # tables other than the kernel would make
        mtu: 9000                             # of all halves; so are `speed` (Mbit/s) and `lanes`
        nccl_conf: {NCCL_IB_HCA: mlx5_0}      # in /etc/nccl.conf
        rank_env: {NCCL_IB_GID_INDEX: "3"}
        available_gib: 110
        machine: {…}                          # of MachineFacts, as JSON
"""

import ipaddress
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import yaml

from sparkd.diagnosis.catalogue import judge as diagnose
from sparkd.diagnosis.evidence import Evidence
from sparkd.preflight.judge import asked_of, judge
from sparkd.preflight.member import member_of
from sparkd.profile.load import parse_source
from sparkd.profile.merge import resolve
from sparkd.profile.plan import build_plan
from sparkd.records.defaults import GIB
from sparkd.records.fabric import NodeFabric
from sparkd.records.facts import EngineVersions, MachineFacts
from sparkd.records.preflight import Member
from sparkd.records.report import EngineFacts, NodeFacts
from sparkd_agent.fabric import discover
from tests.bed.fabric_trees import HALVES, spark, write

_PROFILE = {"schema": "sparkd/v1", "name": "case", "model": {"path": "/m"}}
_MACHINE = MachineFacts(
    wall=1796057942.0,
    hostname_addresses=("10.0.0.1",),
    gpus=("NVIDIA GB10",),
    kernel="6.14.0-1013-nvidia",
    engines=(EngineVersions("default", packages={"vllm": "0.33.0", "nccl": "2.30.7"}),),
)


def evidence_of_launch(file: Path) -> Evidence:
    """What rules look at before this launch, findings of the planner and of detectors included."""
    case = yaml.safe_load(file.read_text())
    with tempfile.TemporaryDirectory() as folder:
        nodes = [_node(Path(folder), number, told) for number, told in enumerate(case["sparks"], 1)]
    intent = resolve(
        parse_source(yaml.safe_dump({**_PROFILE, **case.get("profile", {})}), "case.yaml")
    ).intent
    members = tuple(_member(node, told) for node, told in zip(nodes, case["sparks"], strict=True))
    plan = build_plan(
        "case",
        intent,
        nodes,
        generation=1,
        serial=1,
        api_port=8100,
        rendezvous_port=29600,
        available={
            node.id: round(told["available_gib"] * GIB)
            for node, told in zip(nodes, case["sparks"], strict=True)
            if "available_gib" in told
        },
        nccl={
            node.id: engine.packages["nccl"]
            for node, member in zip(nodes, members, strict=True)
            for engine in (member.machine or _MACHINE).engines
        },
    )
    asked = asked_of(intent)
    by_rules = {one.verdict for one in diagnose(Evidence(members=members, asked=asked))}
    of_parts = tuple(one for one in judge(members, plan, intent) if one not in by_rules)
    return Evidence(members=members, asked=asked, verdicts=of_parts)


def _node(folder: Path, number: int, told: dict[str, Any]) -> NodeFacts:
    changes = {key: told[key] for key in ("mtu", "speed", "lanes") if key in told}
    tree = spark(folder / str(number), number, told.get("cables", {}), **changes)
    for netdev, device, _ in HALVES.values():
        if device in told.get("gids", {}):
            port = (tree.root / "sys/class/infiniband" / device / "ports/1").resolve()
            for part in ("gids", "gid_attrs"):
                shutil.rmtree(port / part, ignore_errors=True)
            for index in range(8):
                kind, address = told["gids"][device].get(index, ("", "::"))
                write(port / "gids", **{str(index): _gid(address)})
                if kind:
                    write(port / "gid_attrs/types", **{str(index): kind})
                    write(port / "gid_attrs/ndevs", **{str(index): netdev})
    if told.get("cards") is False:
        shutil.rmtree(tree.root / "sys/class/infiniband")
    if "nccl_conf" in told:
        lines = "".join(f"{name}={value}\n" for name, value in told["nccl_conf"].items())
        write(tree.root / "etc", **{"nccl.conf": lines})
    seen = discover(tree.root, lambda: tree.addresses, [Path("/etc/nccl.conf")])
    return NodeFacts(
        id=f"n{number}",
        name=f"spark-{number}",
        address=f"10.0.0.{number}",
        fabric_address=f"10.0.0.{number}",
        engines=(EngineFacts("default", ("/opt/vllm/bin/python", "-m", "x"), "0.33.0"),),
        rank_env=told.get("rank_env", {}),
        memory_total=round(121.7 * GIB),
        fabric=NodeFabric() if told.get("sysfs") is False else seen,
    )


def _gid(address: str) -> str:
    told = ipaddress.ip_address(address)
    whole = ipaddress.IPv6Address(f"::ffff:{told}") if told.version == 4 else told
    return str(whole.exploded)


def _member(node: NodeFacts, told: dict[str, Any]) -> Member:
    plain = {**msgspec.to_builtins(_MACHINE), **told.get("machine", {})}
    return replace(member_of(node, {}), machine=msgspec.convert(plain, MachineFacts))
