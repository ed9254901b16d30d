"""The fabric as a picture in a terminal: the networks that nodes share, and the ports that lead nowhere."""

import ipaddress
from collections.abc import Iterator, Sequence

from sparkd.fabric.cards import other_half
from sparkd.records.fabric import Call, FabricSeat, FabricView, Interface

Row = tuple[FabricSeat, Interface, str]


def picture(view: FabricView) -> Iterator[str]:
    """One block a network that two or more nodes are in; the one where ranks would meet comes first."""
    yield f"{view.topology}: {view.reason}"
    networks = _networks(view)
    shared = {network: rows for network, rows in networks.items() if _nodes(rows) > 1}
    for network in sorted(shared, key=lambda one: (one != view.network, not _is_used(shared[one]), one)):
        rows = shared[network]
        rdma = _is_used(rows)
        line = "═" if rdma else "─"
        meets = "ranks meet here" if network == view.network else ""
        words = ", ".join(part for part in ("RDMA" if rdma else "", meets) if part)
        yield ""
        yield f"{line * 2} {network}{f'  {words}' if words else ''}"
        cells = [_cells(*row) for row in rows]
        widths = [max(len(row[at]) for row in cells) for at in range(len(cells[0]))]
        for at, row in enumerate(cells):
            arm = ("╚" if at == len(cells) - 1 else "╠") if rdma else ("└" if at == len(cells) - 1 else "├")
            text = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            yield f"   {arm}{line} {text}".rstrip()
    apart = [text for seat in view.seats for text in _apart(seat, shared)]
    if apart:
        yield ""
        yield "   not used"
        yield from (f"   · {text}" for text in apart)


def _networks(view: FabricView) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for seat in view.seats:
        for interface in seat.fabric.interfaces if seat.fabric else ():
            for text in interface.addresses if interface.up and interface.kind != "loopback" else ():
                address = ipaddress.ip_interface(text)
                if address.version == 4 or not address.ip.is_link_local:
                    found.setdefault(str(address.network), []).append((seat, interface, str(address.ip)))
    return found


def _nodes(rows: list[Row]) -> int:
    return len({seat.node for seat, _, _ in rows})


def _is_used(rows: list[Row]) -> bool:
    return any(_devices(seat, interface) for seat, interface, _ in rows)


def _devices(seat: FabricSeat, interface: Interface) -> list[str]:
    return [port.device for port in interface.rdma if port.device in seat.hcas]


def _cells(seat: FabricSeat, interface: Interface, address: str) -> tuple[str, ...]:
    speed = f"{interface.speed_mbit / 1000:g} Gb/s" if interface.speed_mbit else ""
    mtu = f"MTU {interface.mtu}" if interface.mtu else ""
    gids = [
        f"{port.device} (GID {gid.index})"
        for port in interface.rdma
        if port.device in seat.hcas
        for gid in port.gids
        if gid.address == address and gid.type == "RoCE v2"
    ]
    return seat.name, interface.name, address, speed, mtu, ", ".join(gids)


def _apart(seat: FabricSeat, shared: dict[str, list[Row]]) -> Iterator[str]:
    """RDMA ports that no rank would use, each with the reason."""
    if seat.fabric is None:
        yield f"{seat.name}: it does not show its network"
        return
    if seat.fabric.hotplug_off:
        yield f"{seat.name}: its firmware has switched the network card off: no cable is in it"
    joined = {interface.name for rows in shared.values() for there, interface, _ in rows if there is seat}
    for interface in seat.fabric.interfaces:
        if not interface.rdma or _devices(seat, interface):
            continue
        reason = "no cable" if not interface.up else "no address"
        if interface.addresses and interface.up:
            reason = "left out" if interface.name in joined else f"alone in {', '.join(interface.addresses)}"
        half = other_half(seat.fabric, interface)
        yield f"{seat.name} {interface.name}: {reason}{f', other half of {half.name}' if half else ''}"


def call_rows(calls: Sequence[Call]) -> list[tuple[str, str, str, str]]:
    """One row for each direction of each pair."""
    return [(call.source, f"-> {call.target}", *_outcome(call)) for call in calls]


def _outcome(call: Call) -> tuple[str, str]:
    reached = call.reached
    if reached is None:
        return "not tested", ""
    if reached.tcp is not None:
        return reached.tcp, ""
    size = f"packets of {reached.mtu} bytes" if reached.mtu else "no large packet"
    return f"connected, {(reached.rtt_s or 0) * 1e6:.0f} us", size if call.wanted_mtu else ""
