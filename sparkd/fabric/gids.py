"""Which entry of an RDMA port's table a rank must use, and which one NCCL would take by itself."""

import ipaddress

from sparkd.fabric.networks import Address
from sparkd.records.fabric import ROCE_V2, RdmaPort


def wanted(port: RdmaPort, interface: str, address: Address) -> int | None:
    """The RoCE v2 entry of this address; None if the kernel has made none."""
    for gid in port.gids:
        if gid.type == ROCE_V2 and gid.netdev in (interface, None) and _is(gid.address, address):
            return gid.index
    return None


def nccls_own(port: RdmaPort, family: int) -> int | None:
    """What NCCL 2.21 and later take without NCCL_IB_GID_INDEX; None for an empty table.

    Of the address family (4 or 6) the first RoCE v2 entry, else the first one, else 0: `ncclIbGetGidIndex` in
    its `net_ib.cc`. The family is IPv4 unless NCCL_IB_ADDR_FAMILY says otherwise.
    """
    of_family = [gid for gid in port.gids if ipaddress.ip_address(gid.address).version == family]
    best = [gid for gid in of_family if gid.type == ROCE_V2] or of_family
    return best[0].index if best else 0 if port.gids else None


def _is(text: str, address: Address) -> bool:
    try:
        return ipaddress.ip_address(text) == address
    except ValueError:
        return False
