"""The way that NCCL took, by its own words."""

from pathlib import Path

import pytest

from sparkd.engine.transport import asks_for_sockets, transport_of

FIXTURE = Path(__file__).parents[2] / "fixtures" / "nccl-2.28-sockets" / "rank0.log"
RDMA = "spark-1:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0"
SOCKETS = "spark-1:7:9 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/Socket/0"


def test_what_a_real_nccl_without_rdma_says() -> None:
    lines = FIXTURE.read_text().splitlines()
    assert transport_of(lines) == "sockets"
    first = next(at for at in range(len(lines)) if transport_of(lines[: at + 1]))
    assert any("NET/IB : Using" in line for line in lines[:first]), "which is no proof of RDMA"
    assert not any("Channel 00" in line for line in lines[:first]), "it is known before a channel is made"


@pytest.mark.parametrize(
    ("lines", "way"),
    [
        ([], None),
        (["vllm: via NET/Socket of something else", "NET/IB : No device found."], None),
        ([RDMA], "rdma"),
        ([RDMA, SOCKETS], "sockets"),
        ([SOCKETS, RDMA], "sockets"),
    ],
)
def test_one_channel_over_sockets_decides(lines: list[str], way: str | None) -> None:
    assert transport_of(lines) == way


def test_what_was_said_before_stays() -> None:
    assert transport_of([], "rdma") == "rdma"
    assert transport_of([RDMA], "sockets") == "sockets"


@pytest.mark.parametrize(
    ("env", "sockets"),
    [
        ({}, False),
        ({"NCCL_IB_DISABLE": "0"}, False),
        ({"NCCL_IB_DISABLE": "1"}, True),
        ({"NCCL_NET": "Socket"}, True),
        ({"NCCL_NET": "IB"}, False),
    ],
)
def test_ranks_that_are_told_to_use_sockets(env: dict[str, str], *, sockets: bool) -> None:
    assert asks_for_sockets(env) is sockets
