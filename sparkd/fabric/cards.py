"""What a network card can do: its two halves, its PCIe link."""

from typing import Final

from sparkd.records.fabric import Interface, NodeFabric

PORT_MBIT: Final = 200_000
"""A Spark's port, whatever a switch has made of it."""
_PCIE_PAYLOAD: Final = 128 / 130
"""Of each bit on a lane, from PCIe 3 on."""


def other_half(fabric: NodeFabric, interface: Interface) -> Interface | None:
    """The second interface of the same socket; None if the card is no such card.

    A Spark's card hangs on two PCIe links of four lanes each, in two domains: both see the one cable, and
    neither link alone carries what the cable does. Other machines too have cards that differ in their
    domain only, each with all the lanes that its port needs.
    """
    if interface.pci is None or not _is_half(interface):
        return None
    domain, _, place = interface.pci.partition(":")
    others = [
        one
        for one in fabric.interfaces
        if one.pci is not None and one.pci.partition(":")[2] == place and one.pci.partition(":")[0] != domain
    ]
    return others[0] if len(others) == 1 and _is_half(others[0]) else None


def _is_half(interface: Interface) -> bool:
    able = pcie_mbit(interface)
    return able is not None and bool(interface.rdma) and able < max(interface.speed_mbit or 0, PORT_MBIT)


def pcie_mbit(interface: Interface) -> float | None:
    """What its PCIe link can carry if it runs as well as card and slot allow."""
    if interface.pcie_gts_most is None or interface.pcie_lanes_most is None:
        return None
    return interface.pcie_gts_most * 1000 * interface.pcie_lanes_most * _PCIE_PAYLOAD


def is_narrow(interface: Interface) -> bool:
    """The PCIe link runs below what card and slot can do."""
    lanes = interface.pcie_lanes is not None and interface.pcie_lanes < (interface.pcie_lanes_most or 0)
    slow = interface.pcie_gts is not None and interface.pcie_gts < (interface.pcie_gts_most or 0)
    return lanes or slow
