"""What becomes of an interface while ranks talk over it: carrier, speed, MTU, PCIe link, errors. Pure."""

from dataclasses import dataclass
from ipaddress import ip_address

from sparkd.records.defaults import DEFAULTS, Defaults
from sparkd.records.fabric import ROCE_V2, Gid
from sparkd.records.verdict import Severity, Verdict


@dataclass(frozen=True, slots=True)
class FabricLook:
    """One network interface at a moment (monotonic seconds), as sysfs shows it. None: it does not say."""

    at: float
    interface: str
    carrier: bool | None = None
    carrier_changes: int | None = None
    """Since boot."""
    speed_mbit: int | None = None
    mtu: int | None = None
    pcie_width: int | None = None
    pcie_width_most: int | None = None
    """What both the card and the slot can do."""
    pcie_gts: float | None = None
    pcie_gts_most: float | None = None
    errors: int | None = None
    """Of the netdev and of its RDMA port together, since boot."""
    gids: tuple[Gid, ...] = ()
    """Of its RDMA port's table, entries of other interfaces (VLANs) among them."""


@dataclass(frozen=True, slots=True)
class GidUse:
    """Which entry of its port's table a rank was launched with: the one of this index, else the one of its
    address and RoCE version that NCCL finds by itself.
    """

    address: str
    index: int | None = None
    type: str = ROCE_V2


@dataclass(frozen=True, slots=True)
class Fabric:
    looks: tuple[FabricLook, ...] = ()
    """Of the last window."""
    first: FabricLook | None = None
    """How it was when the present rank began."""


def observe(fabric: Fabric, look: FabricLook, limits: Defaults = DEFAULTS) -> Fabric:
    """Take one look into account; begin anew with every rank."""
    begin = look.at - limits.fabric_window_s
    return Fabric((*(one for one in fabric.looks if one.at >= begin), look), fabric.first or look)


def verdicts(
    fabric: Fabric, limits: Defaults = DEFAULTS, *, use: GidUse | None = None
) -> tuple[Verdict, ...]:
    """`use`: of the rank here; None where it goes over no RDMA, and then no entry matters."""
    if not fabric.looks or fabric.first is None:
        return ()
    last, first = fabric.looks[-1], fabric.first
    found = [_down(last), _flap(fabric, limits), _changed(first, last), _moved(first, last, use)]
    found += [_pcie(last), _errors(fabric)]
    return tuple(verdict for verdict in found if verdict is not None)


def unread(interface: str, asked_s: float, limits: Defaults = DEFAULTS) -> tuple[Verdict, ...]:
    """Whether it was asked about so long ago, in seconds, that its driver may be stuck."""
    if asked_s < 2 * limits.fabric_look_s:
        return ()
    return (
        Verdict(
            "FABRIC_UNREADABLE",
            Severity.WARN,
            f"{interface} says nothing of itself",
            evidence=f"its files in /sys have been read for {asked_s:.0f} s",
            cause="its driver may be stuck",
            remedy="see `dmesg` for what the driver says; a reboot ends it",
        ),
    )


def _down(last: FabricLook) -> Verdict | None:
    if last.carrier is not False:
        return None
    return Verdict(
        "FABRIC_DOWN",
        Severity.BLOCK,
        f"{last.interface} has no carrier",
        evidence=f"{last.carrier_changes} changes of carrier since boot",
        remedy="see to the cable and to the other end's port",
    )


def _flap(fabric: Fabric, limits: Defaults) -> Verdict | None:
    last = fabric.looks[-1]
    changes = _growth(fabric.looks[0].carrier_changes, last.carrier_changes)
    if changes < limits.fabric_flaps:
        return None
    return Verdict(
        "FABRIC_FLAP",
        Severity.WARN,
        f"{last.interface} loses its carrier again and again",
        evidence=f"{changes} changes in {last.at - fabric.looks[0].at:.0f} s",
        cause="a cable, a transceiver or a port that is about to fail",
        remedy="swap the cable; NCCL does not survive a link that was away for its retries",
    )


def _changed(first: FabricLook, last: FabricLook) -> Verdict | None:
    if first.mtu is not None and last.mtu is not None and first.mtu != last.mtu:
        return Verdict(
            "MTU_CHANGED",
            Severity.WARN,
            f"the MTU of {last.interface} changed under the gang",
            evidence=f"{first.mtu} when the rank began, {last.mtu} now",
            cause="a network service set it anew; both ends and the switch must agree",
            remedy=f"set it back to {first.mtu}, in netplan so that it stays",
        )
    if first.speed_mbit and last.speed_mbit and 0 < last.speed_mbit < first.speed_mbit:
        return Verdict(
            "LINK_SLOWER",
            Severity.WARN,
            f"{last.interface} became slower",
            evidence=f"{first.speed_mbit} Mbit/s when the rank began, {last.speed_mbit} now",
            remedy="see to cable and transceiver; on a switch, set the port's speed instead of negotiating",
        )
    return None


def _moved(first: FabricLook, last: FabricLook, use: GidUse | None) -> Verdict | None:
    """What a rank was told at its launch, or has found itself, leads nowhere now (case 18). Others of that
    table come and go as they like.
    """
    used = _entry(first, use) if use is not None else None
    if used is None or not last.gids:
        return None  # without a carrier the table is empty, which is told by itself
    now = [gid.index for gid in last.gids if (gid.address, gid.type) == (used.address, used.type)]
    if used.index in now:
        return None
    return Verdict(
        "GID_MOVED",
        Severity.WARN,
        f"the RoCE entry that the rank uses on {last.interface} moved under it",
        evidence=f"{used.address} ({used.type}) was entry {used.index}, and is {now[0] if now else 'gone'}",
        cause="an address was added or set anew; connections that begin now use the old index, and hang",
        remedy="restart the deployment at a quiet moment: the index is found anew at every launch",
    )


def _entry(look: FabricLook, use: GidUse) -> Gid | None:
    if use.index is not None:
        return next((gid for gid in look.gids if gid.index == use.index), None)
    own = (gid for gid in look.gids if gid.type == use.type and gid.netdev in (look.interface, None))
    return next((gid for gid in own if _is_same(gid.address, use.address)), None)


def _is_same(one: str, other: str) -> bool:
    try:
        return ip_address(one) == ip_address(other)
    except ValueError:
        return False


def _pcie(last: FabricLook) -> Verdict | None:
    narrow = (last.pcie_width or 0) < (last.pcie_width_most or 0)
    slow = (last.pcie_gts or 0) < (last.pcie_gts_most or 0)
    if last.pcie_width is None or last.pcie_gts is None or not (narrow or slow):
        return None
    return Verdict(
        "PCIE_BELOW_MAXIMUM",
        Severity.WARN,
        f"the PCIe link of {last.interface} is below what card and slot can do",
        evidence=f"{last.pcie_gts:g} GT/s x{last.pcie_width}, possible "
        f"{last.pcie_gts_most or last.pcie_gts:g} GT/s x{last.pcie_width_most or last.pcie_width}",
        cause="firmware of before April 2026 wired half of the card too narrow, or the link trained badly",
        remedy="update the firmware; else shut down, take the node off power for a minute and start it again",
    )


def _errors(fabric: Fabric) -> Verdict | None:
    last = fabric.looks[-1]
    grown = _growth(fabric.looks[0].errors, last.errors)
    if not grown:
        return None
    return Verdict(
        "FABRIC_ERRORS",
        Severity.WARN,
        f"{last.interface} counts errors",
        evidence=f"{grown} in {last.at - fabric.looks[0].at:.0f} s",
        remedy="compare the MTU of both ends and of the switch; then swap the cable",
    )


def _growth(before: int | None, after: int | None) -> int:
    return max(0, after - before) if before is not None and after is not None else 0
