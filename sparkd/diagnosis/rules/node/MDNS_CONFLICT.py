import re
from collections.abc import Iterator
from typing import Final

from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.rule import Found, Rule, log
from sparkd.records.preflight import Member
from sparkd.records.verdict import Severity

_LINE: Final = log(
    "Host name conflict",
    ".local;",
    pattern=r"Host name conflict, retrying with \S+|^=;\S+;IPv[46];.*;[\w-]+-\d+\.local;",
)


def _match(evidence: Evidence) -> Iterator[Found]:
    yield from _LINE(evidence)
    for member in evidence.members:
        yield from _of_member(member)


def _of_member(member: Member) -> Iterator[Found]:
    machine = member.machine
    if machine is None or member.local or machine.mdns_name is None:
        return
    announced = machine.mdns_name
    label, own = announced.partition(".")[0].lower(), machine.hostname.partition(".")[0].lower()
    told = machine.mdns_addresses
    if re.fullmatch(rf"{re.escape(own)}-\d+", label):
        yield Found(f"{machine.hostname} is announced as {announced}", node=member.name)
    elif told == ():
        yield Found(
            f"{announced} is announced, and resolves to nothing on {member.name} itself",
            node=member.name,
            title="the node's .local name does not resolve",
            cause="another machine took the name, or the resolver does not ask by mDNS (libnss-mdns)",
        )
    elif told and (foreign := [one for one in told if not _is_own(one, member)]):
        yield Found(
            f"{announced} resolves to {', '.join(foreign)}, no address of {member.name}",
            node=member.name,
            title="the node's .local name leads to another machine",
            cause="two machines announce one name",
        )


def _is_own(address: str, member: Member) -> bool:
    """Unknown where the node's addresses cannot be seen."""
    fabric = member.fabric
    if fabric is None or not fabric.readable or address.startswith(("127.", "::1", "fe80:")):
        return True
    return any(address == text.partition("/")[0] for one in fabric.interfaces for text in one.addresses)


RULE = Rule(
    id="MDNS_CONFLICT",
    title="the node's .local name has changed",
    cause="its own announcement came back to it over another link, so it took the name for taken and added a number",
    remedy="use addresses, or limit avahi to one interface (`allow-interfaces` in avahi-daemon.conf); sparkd itself "
    "knows nodes by an id and by addresses",
    match=_match,
    kind="state",
    severity=Severity.WARN,
    needles=_LINE.needles,
    reference="NVIDIA/dgx-spark-playbooks#56; avahi/avahi#117",
)
