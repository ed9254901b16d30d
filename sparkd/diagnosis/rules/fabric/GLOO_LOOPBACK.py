import ipaddress
from collections.abc import Iterator
from dataclasses import replace

from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.rule import Found, Rule, log
from sparkd.records.verdict import Severity

_FALLBACK = log("Using the loopback address as fallback")
_FAILED = log("connectFullMesh failed")


def _match(evidence: Evidence) -> Iterator[Found]:
    """The fall-back alone is harmless where all ranks are on one machine: then it is only told."""
    failed = list(_FAILED(evidence))
    yield from failed
    if not failed:
        yield from (replace(found, severity=Severity.WARN) for found in _FALLBACK(evidence))
    if evidence.asked is None or evidence.asked.ranks > 1:
        yield from _names(evidence)


def _names(evidence: Evidence) -> Iterator[Found]:
    """Gloo asks for the address of its machine's own name where nobody names an interface."""
    for member in evidence.members:
        machine = member.machine
        addresses = machine.hostname_addresses if machine is not None else None
        if machine is None or member.local or addresses is None:
            continue
        if any(not _is_loopback(address) for address in addresses):
            continue
        resolves = f"resolves to {', '.join(addresses)}" if addresses else "does not resolve"
        named = "sparkd names gloo's interface, so its ranks do not ask for the name; other programs do"
        yield Found(
            f"{machine.hostname} {resolves}",
            node=member.name,
            title="this node's own name leads to no address that others can reach",
            cause=named if member.interface_named else "",
            remedy=f"in /etc/hosts of {member.name}: {member.fabric_address} {machine.hostname}",
            severity=Severity.NOTE if member.interface_named else None,
        )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


RULE = Rule(
    id="GLOO_LOOPBACK",
    title="gloo offered the others an address that only this node can reach",
    cause="the node's own name resolves to 127.0.1.1, or to nothing, so gloo took the loopback interface",
    remedy="set GLOO_SOCKET_IFNAME, as sparkd does for each node; `getent hosts $(hostname)` shows what the name means",
    match=_match,
    needles=(*_FALLBACK.needles, *_FAILED.needles),
    reference="aws-samples/aws-do-eks PR #50; vllm-project/vllm#7074, #5094",
)
