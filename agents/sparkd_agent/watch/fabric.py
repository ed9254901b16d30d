"""One network interface and its RDMA port, as sysfs shows them."""

from pathlib import Path
from typing import Final

from sparkd.detect.fabric import FabricLook
from sparkd_agent.fabric import gids_of
from sparkd_agent.sysfs import number, pcie_most, whole

_NETDEV_ERRORS: Final = ("rx_errors", "tx_errors", "rx_crc_errors")
_RDMA_ERRORS: Final = (
    "port_rcv_errors",
    "symbol_error",
    "link_error_recovery",
    "local_link_integrity_errors",
)

_GIDS: Final = 16
"""A table has up to 256 entries, and those in use come first."""


def look(interface: str, at: float, sys: Path = Path("/sys")) -> FabricLook:
    """`at` in monotonic seconds. What sysfs refuses (an interface that is down has no speed) is None."""
    folder = sys / "class" / "net" / interface
    device = folder / "device"
    carrier = whole(folder / "carrier")
    speed = whole(folder / "speed")
    lanes_most = pcie_most(device, "max_link_width")
    return FabricLook(
        at,
        interface,
        carrier=None if carrier is None else bool(carrier),
        carrier_changes=whole(folder / "carrier_changes"),
        speed_mbit=speed if speed is not None and speed > 0 else None,
        mtu=whole(folder / "mtu"),
        pcie_width=whole(device / "current_link_width"),
        pcie_width_most=None if lanes_most is None else int(lanes_most),
        pcie_gts=number(device / "current_link_speed"),
        pcie_gts_most=pcie_most(device, "max_link_speed"),
        errors=_errors(folder, device),
        gids=tuple(gid for port in _ports(device) for gid in gids_of(port, _GIDS)),
    )


def _ports(device: Path) -> list[Path]:
    try:
        return [port for one in (device / "infiniband").iterdir() for port in (one / "ports").iterdir()]
    except OSError:
        return []


def _errors(folder: Path, device: Path) -> int | None:
    counts = [whole(folder / "statistics" / name) for name in _NETDEV_ERRORS]
    counts += [whole(port / "counters" / name) for port in _ports(device) for name in _RDMA_ERRORS]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
