"""What the links that ranks were given should carry. Pure."""

from sparkd.fabric.cards import other_half, pcie_mbit
from sparkd.fabric.choice import Choice, Seat
from sparkd.records.fabric import Interface, NodeFabric


def link_mbit(choice: Choice) -> float | None:
    """Each way, of the node that can do least; None where a node does not show its speed."""
    if choice.is_rdma:
        found = [_of_cards(seat) for seat in choice.seats]
    else:
        found = [_of_sockets(seat) for seat in choice.seats]
    known = [one for one in found if one is not None]
    return min(known) if known and len(known) == len(found) else None


def _of_sockets(seat: Seat) -> float | None:
    one = seat.member.fabric.interface(seat.interface) if seat.interface else None
    return float(one.speed_mbit) if one is not None and one.speed_mbit else None


def _of_cards(seat: Seat) -> float | None:
    """Both halves of one socket share its cable; of separate cards a rank with one GPU fills one."""
    fabric = seat.member.fabric
    names = {hca.interface for hca in seat.hcas}
    used = [one for one in fabric.interfaces if one.name in names]
    return max((mbit for one in used if (mbit := _of_socket(fabric, one, names)) is not None), default=None)


def _of_socket(fabric: NodeFabric, one: Interface, names: set[str]) -> float | None:
    mine = _of_half(one)
    other = other_half(fabric, one)
    if mine is None or other is None or other.name not in names:
        return mine
    cable = max(one.speed_mbit or 0, other.speed_mbit or 0)
    return min(mine + (_of_half(other) or 0.0), float(cable))


def _of_half(one: Interface) -> float | None:
    if not one.speed_mbit:
        return None
    return min(float(one.speed_mbit), pcie_mbit(one) or float(one.speed_mbit))
