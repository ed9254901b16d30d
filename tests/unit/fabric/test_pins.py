"""What people gave for a node's fabric, verified on that node."""

import pytest

from sparkd.fabric.choice import Choice, choose
from sparkd.fabric.member import Member
from sparkd.fabric.pins import Pin, wrong
from sparkd.records.fabric import NodeFabric
from tests.bed.fabric_trees import pair

GOOD = [
    ("GLOO_SOCKET_IFNAME", "enp1s0f0np0"),
    ("GLOO_SOCKET_IFNAME", "enP7s7"),
    ("TP_SOCKET_IFNAME", "enp1s0f0np0,enP2p1s0f0np0"),
    ("NCCL_SOCKET_IFNAME", "enp1s0f0"),
    ("NCCL_SOCKET_IFNAME", "=enp1s0f0np0"),
    ("NCCL_SOCKET_IFNAME", "^docker,lo"),
    ("VLLM_HOST_IP", "192.168.101.1"),
    ("NCCL_IB_HCA", "rocep1s0f0,roceP2p1s0f0"),
    ("NCCL_IB_HCA", "roce"),
    ("NCCL_IB_HCA", "=rocep1s0f0:1"),
    ("NCCL_IB_HCA", "^roceP2p1s0f1"),
    ("NCCL_IB_GID_INDEX", "3"),
    ("NCCL_IB_GID_INDEX", "-1"),
    ("UCX_NET_DEVICES", "all"),
    ("UCX_NET_DEVICES", "rocep1s0f0:1,enP7s7"),
    ("NCCL_DEBUG", "anything"),
]
BAD = [
    ("GLOO_SOCKET_IFNAME", "enp1s0f1np1", "IFNAME_STALE_CONCRETE", "enp1s0f1np1 is down"),
    ("GLOO_SOCKET_IFNAME", "eth0", "IFNAME_STALE_CONCRETE", "there is no interface eth0"),
    ("TP_SOCKET_IFNAME", "enp1s0f0np0,eth0", "IFNAME_STALE_CONCRETE", "there is no interface eth0"),
    ("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", "eth0", "IFNAME_STALE_CONCRETE", "there is no interface eth0"),
    ("NCCL_SOCKET_IFNAME", "=enp1s0f0", "IFNAME_STALE_CONCRETE", "there is no interface enp1s0f0"),
    ("NCCL_SOCKET_IFNAME", "wlP", "IFNAME_STALE_CONCRETE", "wlP9s9 is down"),
    ("NCCL_SOCKET_IFNAME", "^enp", "IFNAME_STALE_CONCRETE", "it excludes enp1s0f0np0"),
    ("VLLM_HOST_IP", "192.168.100.2", "HOST_IP_FOREIGN", "no address of this node"),
    ("NCCL_IB_HCA", "=rocep1s0f0,mlx5_0", "HCA_ABSENT", "there is no RDMA device mlx5_0"),
    ("NCCL_IB_HCA", "=rocep1s0", "HCA_ABSENT", "there is no RDMA device rocep1s0"),
    ("NCCL_IB_HCA", "=rocep1s0f0:2", "HCA_ABSENT", "there is no RDMA device rocep1s0f0:2"),
    ("NCCL_IB_HCA", "rocep1s0f1", "HCA_ABSENT", "rocep1s0f1 is down"),
    ("NCCL_IB_GID_INDEX", "1", "GID_MISMATCH", "entry 1 of rocep1s0f0 is RoCE v2 of fe80"),
    ("NCCL_IB_GID_INDEX", "2", "GID_MISMATCH", "entry 2 of rocep1s0f0 is IB/RoCE v1 of 192.168.100.1"),
    ("NCCL_IB_GID_INDEX", "5", "GID_MISMATCH", "entry 5 of rocep1s0f0 is empty"),
    ("NCCL_IB_GID_INDEX", "three", "GID_MISMATCH", "which NCCL reads as 0"),
    ("UCX_NET_DEVICES", "mlx5_0:1", "HCA_ABSENT", "there is no RDMA device mlx5_0:1"),
    ("UCX_NET_DEVICES", "eth0", "HCA_ABSENT", "there is no interface eth0"),
]


@pytest.fixture(scope="module")
def choice(tmp_path_factory: pytest.TempPathFactory) -> Choice:
    trees = pair(tmp_path_factory.mktemp("pair"))
    return choose(
        [Member(f"n{n}", f"spark-{n}", f"10.0.0.{n}", tree.discovered()) for n, tree in enumerate(trees, 1)]
    )


@pytest.mark.parametrize(("name", "value"), GOOD)
def test_what_is_there(choice: Choice, name: str, value: str) -> None:
    assert wrong(Pin(name, value, "the profile"), choice.seats[0], choice) is None


@pytest.mark.parametrize(("name", "value", "code", "words"), BAD)
def test_what_is_not_there(choice: Choice, name: str, value: str, code: str, words: str) -> None:
    verdict = wrong(Pin(name, value, "the profile"), choice.seats[0], choice)
    assert verdict is not None
    assert (verdict.id, verdict.node) == (code, "n1")
    assert words in verdict.title
    assert verdict.evidence == f"{name}={value}, from the profile"


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, value, _, _ in BAD])
def test_nothing_is_wrong_where_nothing_is_seen(choice: Choice, name: str, value: str) -> None:
    blind = choose([Member("n1", "a", "10.0.0.1", NodeFabric()), choice.seats[1].member])
    assert wrong(Pin(name, value, "the profile"), blind.seats[0], blind) is None
