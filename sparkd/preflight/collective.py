"""What a launch wants proved by a collective probe, and how it knows that nothing has changed since. Pure."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from ipaddress import ip_interface
from typing import Any, Final

import msgspec

from sparkd.fabric.capacity import link_mbit
from sparkd.fabric.choice import choose
from sparkd.fabric.member import members_of
from sparkd.gang.collective import CollectiveAsk
from sparkd.records.fabric import Interface
from sparkd.records.preflight import Member
from sparkd.records.rank import RankSpec
from sparkd.records.report import NodeFacts

_PACKAGES: Final = ("vllm", "torch", "nccl", "cuda")
_FORMAT: Final = 1
"""Of the key: another one is another key, and the probe runs once more."""


def ask_of(
    specs: Sequence[RankSpec],
    nodes: Sequence[NodeFacts],
    members: Mapping[str, Member],
    boots: Mapping[str, str],
) -> CollectiveAsk | None:
    """`nodes` in rank order, with their networks as found now; `members` and boot ids by node id.

    None for one rank, and for a local set: its ranks meet over no network.
    """
    if len(specs) < 2 or all(node.local for node in nodes):
        return None
    key = [
        _FORMAT,
        *(_matters(spec, node, members.get(node.id), boots) for spec, node in zip(specs, nodes, strict=True)),
    ]
    digest = hashlib.sha256(msgspec.json.encode(key)).hexdigest()[:16]
    return CollectiveAsk(digest, tuple(specs), link_mbit(choose(members_of(nodes))))


def _matters(
    spec: RankSpec, node: NodeFacts, member: Member | None, boots: Mapping[str, str]
) -> dict[str, Any]:
    machine = member.machine if member is not None else None
    engines = {one.name: one.packages for one in machine.engines} if machine is not None else {}
    packages = engines.get(spec.engine, {})
    return {
        "node": node.id,
        "boot": boots.get(node.id, ""),
        "runtime": spec.runtime,
        "image": spec.image.identity if spec.image is not None else "",
        "engine": [spec.engine, *(packages.get(name, "") for name in _PACKAGES)],
        "driver": machine.driver if machine is not None else None,
        "env": sorted(spec.env.items()),
        "rdma": spec.rdma,
        "host": spec.rendezvous.host,
        "links": [_link(one, spec.rendezvous.host) for one in _used(spec, node)],
    }


def _used(spec: RankSpec, node: NodeFacts) -> list[Interface]:
    """Those that the rank's variables name."""
    values = " ".join(spec.env.get(name, "") for name in ("GLOO_SOCKET_IFNAME", "NCCL_IB_HCA"))
    named = set(re.split(r"[ ,:=^]", values))
    interfaces = node.fabric.interfaces if node.fabric is not None else ()
    return [one for one in interfaces if named & {one.name, *(port.device for port in one.rdma)}]


def _link(one: Interface, host: str) -> list[Any]:
    ports = [[port.device, port.port, port.state, port.rate_gbit] for port in one.rdma]
    pcie = [one.pcie_gts, one.pcie_lanes]
    addresses = sorted(text for text in one.addresses if _is_met_by(text, host))
    return [one.name, one.up, one.carrier, one.mtu, one.speed_mbit, addresses, pcie, ports]


def _is_met_by(address: str, host: str) -> bool:
    """Whether it is of the family by which the ranks meet. IPv6 gives each link an address of its own, some
    seconds after it came up: that one changes nothing.
    """
    own = ip_interface(address)
    return own.version == (6 if ":" in host else 4) and not (own.version == 6 and own.is_link_local)
