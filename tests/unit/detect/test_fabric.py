"""An interface that ranks talk over, and what may happen to it meanwhile."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from sparkd.detect.fabric import Fabric, FabricLook, GidUse, observe, verdicts
from sparkd.records.fabric import ROCE_V1, ROCE_V2, Gid

PORT = "enp1s0f1np1"
OWN = "192.168.100.10"


USES = GidUse(OWN)


def table(**indices: int) -> tuple[Gid, ...]:
    """`v1`, `v2`, `local`, `other` and `vlan`: where each entry is; left out, it is not there."""
    entries = {
        "local": ("fe80::1", ROCE_V2, PORT),
        "v1": (OWN, ROCE_V1, PORT),
        "v2": (OWN, ROCE_V2, PORT),
        "other": ("192.168.100.99", ROCE_V2, PORT),
        "vlan": (OWN, ROCE_V2, f"{PORT}.7"),
    }
    return tuple(Gid(index, *entries[name]) for name, index in indices.items())


HEALTHY = FabricLook(
    0.0,
    "enp1s0f1np1",
    carrier=True,
    carrier_changes=2,
    speed_mbit=200_000,
    mtu=9000,
    pcie_width=4,
    pcie_width_most=4,
    pcie_gts=32.0,
    pcie_gts_most=32.0,
    errors=7,
    gids=table(local=1, v1=2, v2=3),
)


def ids(looks: Iterable[FabricLook], step_s: float = 5.0, use: GidUse | None = USES) -> list[str]:
    fabric = Fabric()
    for number, look in enumerate(looks):
        fabric = observe(fabric, replace(look, at=number * step_s))
    return [verdict.id for verdict in verdicts(fabric, use=use)]


FAULTS = {
    "FABRIC_DOWN": replace(HEALTHY, carrier=False, carrier_changes=3, speed_mbit=-1),
    "FABRIC_FLAP": replace(HEALTHY, carrier_changes=4),
    "MTU_CHANGED": replace(HEALTHY, mtu=1500),
    "LINK_SLOWER": replace(HEALTHY, speed_mbit=100_000),
    "FABRIC_ERRORS": replace(HEALTHY, errors=9),
    "GID_MOVED": replace(HEALTHY, gids=table(local=1, v1=2, v2=4)),
}


@pytest.mark.parametrize(("verdict", "look"), FAULTS.items(), ids=FAULTS)
def test_a_change_is_found(verdict: str, look: FabricLook) -> None:
    assert ids([HEALTHY] * 10) == []
    assert ids([*[HEALTHY] * 10, look]) == [verdict]


def test_a_narrow_pcie_link_is_found_at_once() -> None:
    """Firmware of before April 2026 wired half of the card with two lanes (tonyd2wild PR#35)."""
    assert ids([replace(HEALTHY, pcie_width=2)]) == ["PCIE_BELOW_MAXIMUM"]
    assert ids([replace(HEALTHY, pcie_gts=16.0)]) == ["PCIE_BELOW_MAXIMUM"]


def test_a_flap_of_long_ago_is_forgotten() -> None:
    assert ids([*[HEALTHY] * 2, *[FAULTS["FABRIC_FLAP"]] * 100]) == []


def test_a_changed_mtu_stays_found() -> None:
    assert ids([*[HEALTHY] * 2, *[FAULTS["MTU_CHANGED"]] * 100]) == ["MTU_CHANGED"]


def test_what_sysfs_does_not_say_judges_nothing() -> None:
    assert ids([FabricLook(0.0, "lo")] * 3) == []
    assert ids([HEALTHY, FabricLook(0.0, "enp1s0f1np1")]) == []


@pytest.mark.parametrize(
    ("use", "later", "moved"),
    [
        (GidUse(OWN), table(local=1, v1=2, v2=3, other=5), False),
        (GidUse(OWN), table(local=7, v1=2, v2=3), False),  # another one moves
        (GidUse(OWN), table(v2=3), False),  # and others go
        (GidUse(OWN), table(local=1, v1=8, v2=3), False),  # of the other RoCE version
        (GidUse(OWN), table(local=1, v1=2, v2=3, vlan=0), False),  # of another interface
        (GidUse(OWN), table(local=1, v1=2, v2=5), True),
        (GidUse(OWN), table(local=1, v1=2), True),
        (GidUse(OWN), (), False),  # without a carrier the table is empty
        (GidUse(OWN, type=ROCE_V1), table(local=1, v1=5, v2=3), True),
        (GidUse(OWN, type=ROCE_V1), table(local=1, v1=2, v2=5), False),
        (GidUse(OWN, index=1), table(local=1, v1=2, v2=5), False),  # pinned to an odd one
        (GidUse(OWN, index=1), table(local=5, v1=2, v2=3), True),
        (GidUse(OWN, index=9), table(local=5, v1=6, v2=7), False),  # never seen
        (GidUse("no address"), table(local=5, v1=6, v2=7), False),
        (None, table(local=5, v1=6, v2=7), False),  # over sockets no entry matters
    ],
)
def test_case_18_only_the_entry_that_the_rank_uses_matters(
    use: GidUse | None, later: tuple[Gid, ...], moved: bool
) -> None:
    found = ids([HEALTHY, replace(HEALTHY, gids=later)], use=use)
    assert found == (["GID_MOVED"] if moved else [])


def test_an_ipv6_address_is_the_same_however_it_is_written() -> None:
    moved = replace(HEALTHY, gids=table(local=6, v1=2, v2=3))
    assert ids([HEALTHY, moved], use=GidUse("FE80:0::1")) == ["GID_MOVED"]
