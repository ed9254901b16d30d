"""An interface as sysfs shows it; a tree as on a Spark, in a folder."""

from dataclasses import replace
from pathlib import Path

import pytest

from sparkd.detect.fabric import FabricLook, GidUse
from sparkd.records.fabric import ROCE_V1, ROCE_V2, Gid
from sparkd_agent.specs import gid_of, unknown_spec
from sparkd_agent.watch.fabric import look


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    bridge = tmp_path / "devices" / "pci0000:00" / "0000:00:00.0"
    card = bridge / "0000:01:00.1"
    folder = tmp_path / "class" / "net" / "enp1s0f1np1"
    write(folder, carrier="1", carrier_changes="2", speed="200000", mtu="9000")
    write(folder / "statistics", rx_errors="1", tx_errors="2", rx_crc_errors="0")
    write(card, current_link_width="4", max_link_width="16", current_link_speed="32.0 GT/s PCIe")
    write(card, max_link_speed="32.0 GT/s PCIe")
    write(bridge, max_link_width="4", max_link_speed="32.0 GT/s PCIe")
    write(
        card / "infiniband" / "rocep1s0f1" / "ports" / "1" / "counters", symbol_error="5", port_rcv_errors="1"
    )
    (folder / "device").symlink_to(card)
    return tmp_path


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text + "\n")


def test_a_spark_and_the_slot_decides(sys: Path) -> None:
    """The card could do 16 lanes; four are wired."""
    assert look("enp1s0f1np1", 5.0, sys) == FabricLook(
        5.0,
        "enp1s0f1np1",
        carrier=True,
        carrier_changes=2,
        speed_mbit=200_000,
        mtu=9000,
        pcie_width=4,
        pcie_width_most=4,
        pcie_gts=32.0,
        pcie_gts_most=32.0,
        errors=9,
    )


def test_down(sys: Path) -> None:
    write(sys / "class" / "net" / "enp1s0f1np1", carrier="0", speed="-1")
    seen = look("enp1s0f1np1", 5.0, sys)
    assert (seen.carrier, seen.speed_mbit) == (False, None)


def test_nothing_there(tmp_path: Path) -> None:
    assert look("enp1s0f1np1", 5.0, tmp_path) == FabricLook(5.0, "enp1s0f1np1")


def test_the_loopback_at_hand() -> None:
    seen = look("lo", 5.0)
    assert seen.mtu is not None
    assert (seen.pcie_width, seen.speed_mbit) == (None, None)


def test_entries_of_its_port_by_their_index(sys: Path) -> None:
    port = sys / "class/net/enp1s0f1np1/device/infiniband/rocep1s0f1/ports/1"
    address = "0000:0000:0000:0000:0000:ffff:c0a8:640a"
    table = {"2": ("IB/RoCE v1", address), "3": ("RoCE v2", address), "7": ("", "::")}
    for index, (kind, gid) in table.items():
        write(port / "gids", **{index: gid})
        if kind:
            write(port / "gid_attrs" / "types", **{index: kind})
    assert look("enp1s0f1np1", 5.0, sys).gids == (
        Gid(2, "192.168.100.10", ROCE_V1),
        Gid(3, "192.168.100.10", ROCE_V2),
    )


@pytest.mark.parametrize(
    ("env", "rdma", "use"),
    [
        ({}, True, GidUse("192.168.100.10")),
        ({"NCCL_IB_GID_INDEX": "3"}, True, GidUse("192.168.100.10", 3)),
        ({"NCCL_IB_GID_INDEX": "-1"}, True, GidUse("192.168.100.10")),
        ({"NCCL_IB_ROCE_VERSION_NUM": "1"}, True, GidUse("192.168.100.10", type=ROCE_V1)),
        ({"NCCL_IB_DISABLE": "1"}, False, None),
    ],
)
def test_which_entry_a_rank_was_launched_with(env: dict[str, str], rdma: bool, use: GidUse | None) -> None:
    spec = unknown_spec("sparkd-d-g1-r0")
    given = {"VLLM_HOST_IP": "192.168.100.10", **env}
    assert gid_of(replace(spec, env=given, rdma=rdma)) == use
