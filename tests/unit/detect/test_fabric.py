"""An interface that ranks talk over, and what may happen to it meanwhile."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from sparkd.detect.fabric import Fabric, FabricLook, observe, verdicts

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
    gids=((1, "fe80::1"), (3, "192.168.100.10")),
)


def ids(looks: Iterable[FabricLook], step_s: float = 5.0) -> list[str]:
    fabric = Fabric()
    for number, look in enumerate(looks):
        fabric = observe(fabric, replace(look, at=number * step_s))
    return [verdict.id for verdict in verdicts(fabric)]


FAULTS = {
    "FABRIC_DOWN": replace(HEALTHY, carrier=False, carrier_changes=3, speed_mbit=-1),
    "FABRIC_FLAP": replace(HEALTHY, carrier_changes=4),
    "MTU_CHANGED": replace(HEALTHY, mtu=1500),
    "LINK_SLOWER": replace(HEALTHY, speed_mbit=100_000),
    "FABRIC_ERRORS": replace(HEALTHY, errors=9),
    "GID_MOVED": replace(HEALTHY, gids=((1, "fe80::1"), (4, "192.168.100.10"))),
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


def test_case_18_only_an_entry_that_moves_or_goes_is_worth_a_word() -> None:
    more = replace(HEALTHY, gids=(*HEALTHY.gids, (5, "192.168.100.99")))
    gone = replace(HEALTHY, gids=((1, "fe80::1"),))
    assert ids([HEALTHY, more]) == []
    assert ids([HEALTHY, gone]) == ["GID_MOVED"]
    assert ids([HEALTHY, replace(HEALTHY, gids=())]) == [], "without a carrier the table is empty"
