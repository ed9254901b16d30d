"""What a node's nccl.conf says, judged as if it had been given.

NCCL reads it itself, so all that keeps it from a rank is a variable of that name in the rank's environment.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from sparkd.engine.environment import diverts
from sparkd.engine.transport import asks_for_sockets
from sparkd.fabric.choice import Choice, Seat
from sparkd.fabric.pins import Pin, reason_against
from sparkd.records.fabric import NcclSetting
from sparkd.records.verdict import Severity, Verdict

_AS_IF_UNSET: Final = {"NCCL_IB_GID_INDEX": "-1", "NCCL_IB_DISABLE": "0", "NCCL_NET": "IB"}
"""What says the same as nothing to NCCL; NCCL_NET is one where ranks go over RDMA."""


@dataclass(frozen=True, slots=True)
class Judged:
    verdict: Verdict
    instead: tuple[str, str] | None = None
    """The variable that keeps it from the rank; None: one of that name is there already, or none would."""


def judge_settings(given: Mapping[str, str], seat: Seat, choice: Choice) -> Iterator[Judged]:
    """`given`: what the rank's environment has already."""
    for setting in seat.member.fabric.nccl:
        reason = _reason(setting, seat, choice)
        if reason is None or given.get(setting.name) == setting.value:
            continue
        instead = _instead(setting, choice)
        if setting.name in given:
            yield Judged(_verdict(setting, seat, Severity.NOTE, "is not used", reason))
        elif instead is not None:
            yield Judged(
                _verdict(setting, seat, Severity.WARN, "is not used", reason), (setting.name, instead)
            )
        else:
            yield Judged(_verdict(setting, seat, Severity.BLOCK, "would be used", reason))


def _reason(setting: NcclSetting, seat: Seat, choice: Choice) -> str | None:
    if choice.topology == "alone":
        return None
    if (reason := diverts(setting.name)) is not None:
        return reason
    if choice.is_rdma and asks_for_sockets({setting.name: setting.value}):
        return "it keeps NCCL from RDMA"
    family = f"AF_INET{6 if choice.version == 6 else ''}"
    if setting.name.endswith(("_SOCKET_FAMILY", "_ADDR_FAMILY")) and setting.value != family:
        return f"ranks meet over {family}"
    return reason_against(Pin(setting.name, setting.value, setting.file), seat, choice)


def _instead(setting: NcclSetting, choice: Choice) -> str | None:
    if setting.name.endswith(("_SOCKET_FAMILY", "_ADDR_FAMILY")):
        return f"AF_INET{6 if choice.version == 6 else ''}"
    return _AS_IF_UNSET.get(setting.name)


def _verdict(setting: NcclSetting, seat: Seat, severity: Severity, fate: str, reason: str) -> Verdict:
    return Verdict(
        "NCCL_CONF",
        severity,
        f"{setting.name} of {setting.file} {fate} on {seat.member.name}: {reason}",
        evidence=f"{setting.name}={setting.value} in {setting.file}",
        cause="NCCL reads this file by itself; it was written for other cables or another program",
        remedy=f"take {setting.name} out of {setting.file} on {seat.member.name}",
        node=seat.member.id,
    )
