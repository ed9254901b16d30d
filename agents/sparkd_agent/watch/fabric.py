"""One network interface and its RDMA port, as sysfs shows them."""

from pathlib import Path
from typing import Final

from sparkd.detect.fabric import FabricLook

_NETDEV_ERRORS: Final = ("rx_errors", "tx_errors", "rx_crc_errors")
_RDMA_ERRORS: Final = (
    "port_rcv_errors",
    "symbol_error",
    "link_error_recovery",
    "local_link_integrity_errors",
)


def look(interface: str, at: float, sys: Path = Path("/sys")) -> FabricLook:
    """`at` in monotonic seconds. What sysfs refuses (an interface that is down has no speed) is None."""
    folder = sys / "class" / "net" / interface
    device = folder / "device"
    carrier = _number(folder / "carrier")
    speed = _number(folder / "speed")
    return FabricLook(
        at,
        interface,
        carrier=None if carrier is None else bool(carrier),
        carrier_changes=_number(folder / "carrier_changes"),
        speed_mbit=speed if speed is not None and speed > 0 else None,
        mtu=_number(folder / "mtu"),
        pcie_width=_number(device / "current_link_width"),
        pcie_width_most=_most(device, "max_link_width"),
        pcie_gts=_number(device / "current_link_speed"),
        pcie_gts_most=_most(device, "max_link_speed"),
        errors=_errors(folder, device),
    )


def _most(device: Path, name: str) -> int | None:
    """What both ends can do: a card with 16 lanes in a slot with four has four."""
    card = _number(device / name)
    slot = _number(device.resolve().parent / name)
    return card if slot is None or card is None else min(card, slot)


def _errors(folder: Path, device: Path) -> int | None:
    counts = [_number(folder / "statistics" / name) for name in _NETDEV_ERRORS]
    try:
        ports = [
            port / "counters"
            for one in (device / "infiniband").iterdir()
            for port in (one / "ports").iterdir()
        ]
    except OSError:
        ports = []
    counts += [_number(counters / name) for counters in ports for name in _RDMA_ERRORS]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _number(path: Path) -> int | None:
    """The first number in the file: `32.0 GT/s PCIe`, `4`, `-1`."""
    try:
        return int(float(path.read_text().split()[0]))
    except (OSError, ValueError, IndexError):
        return None
