"""What NCCL says of the way it took: 2.28 as seen (tests/fixtures/nccl-2.28-sockets), NET/IB as reported."""

from collections.abc import Iterable
from typing import Final, Literal

Transport = Literal["rdma", "sockets"]

_SOCKETS: Final = ("via NET/Socket", "Using network Socket", "Assigned NET plugin Socket")
_RDMA: Final = "via NET/IB"
"""`NET/IB : Using` proves nothing: NCCL writes it without any device as well."""


def transport_of(lines: Iterable[str], before: Transport | None = None) -> Transport | None:
    """The way so far; None while NCCL has said nothing. One channel over sockets makes all of it slow."""
    found = before
    for line in lines:
        if found == "sockets" or "NCCL INFO" not in line:
            continue
        if any(words in line for words in _SOCKETS):
            found = "sockets"
        elif _RDMA in line:
            found = "rdma"
    return found


def asks_for_sockets(env: dict[str, str]) -> bool:
    """Whether a rank's own variables keep NCCL from RDMA."""
    disabled = env.get("NCCL_IB_DISABLE", "0") not in ("", "0")
    return disabled or env.get("NCCL_NET", "").lower() == "socket"
