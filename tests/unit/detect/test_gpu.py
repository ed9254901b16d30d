"""Group C of the reports, as far as a GPU's numbers tell: each fault, and the contrast that stays quiet."""

from dataclasses import replace

import pytest

from sparkd.detect.gpu import Gpu, GpuLook, observe, verdicts

SERVING = GpuLook(0.0, utilization=96.0, sm_mhz=2350.0, watts=46.0, celsius=62.0, reasons=0)
STUCK = replace(SERVING, sm_mhz=799.0, watts=19.5)
SPINNING = replace(SERVING, sm_mhz=2400.0, watts=22.0)


def ids(
    look: GpuLook, seconds: int = 30, moving: bool | None = None, before: GpuLook | None = None
) -> list[str]:
    gpu = Gpu()
    for second in range(seconds):
        shown = before if before is not None and second < seconds // 2 else look
        gpu = observe(gpu, replace(shown, at=float(second)))
    return [verdict.id for verdict in verdicts(gpu, moving=moving)]


def test_case_42_stuck_in_low_power() -> None:
    assert ids(STUCK) == ["LOW_POWER_STUCK"]
    assert ids(STUCK, moving=True) == ["LOW_POWER_STUCK"]  # it is slow, not dead


def test_case_38_a_spinning_kernel() -> None:
    assert ids(SPINNING) == ["SPIN_DEADLOCK"]
    assert ids(SPINNING, moving=False) == ["SPIN_DEADLOCK"]
    assert ids(SPINNING, moving=True) == []


@pytest.mark.parametrize(
    "look",
    [
        pytest.param(SERVING, id="serving"),
        pytest.param(replace(SPINNING, watts=46.0), id="a long prefill"),
        pytest.param(replace(STUCK, utilization=3.0, watts=8.0, sm_mhz=208.0), id="idle"),
        pytest.param(replace(STUCK, watts=None), id="no power"),
        pytest.param(replace(STUCK, utilization=None), id="no utilisation"),
        pytest.param(
            replace(SERVING, sm_mhz=1980.0, watts=120.0, utilization=100.0), id="an H200 that waits"
        ),
        pytest.param(replace(SERVING, reasons=0x4), id="at its power limit"),
    ],
)
def test_quiet(look: GpuLook) -> None:
    assert ids(look, moving=False) == []


@pytest.mark.parametrize("look", [STUCK, SPINNING])
def test_it_takes_twenty_seconds(look: GpuLook) -> None:
    assert ids(look, 20) == []
    assert ids(look, 21) != []
    assert ids(look, 30, before=SERVING) == []


@pytest.mark.parametrize(
    ("reasons", "verdict"), [(0x20, "THERMAL_THROTTLE"), (0x48, "THERMAL_THROTTLE"), (0x80, "POWER_BRAKE")]
)
def test_throttles(reasons: int, verdict: str) -> None:
    hot = replace(SERVING, reasons=reasons, celsius=88.0)
    assert ids(hot) == [verdict]
    assert ids(hot, 12, before=SERVING) == []  # six seconds only


def test_a_look_that_did_not_come_again_is_not_counted_twice() -> None:
    gpu = observe(Gpu(), STUCK)
    assert observe(gpu, STUCK) is gpu


def test_what_is_kept_is_bounded() -> None:
    gpu = Gpu()
    for second in range(1000):
        gpu = observe(gpu, replace(SERVING, at=float(second)))
    assert len(gpu.looks) < 30
