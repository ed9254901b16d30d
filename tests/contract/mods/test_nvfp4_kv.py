"""MiMo's KV cache in 4 bits: bytes, the backend on real classes of each version, both kernels."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.contract.mods.conftest import ALL, PYTHON, ROOT, Inside

pytestmark = [pytest.mark.mods, pytest.mark.timeout(600)]

newest = pytest.mark.parametrize("inside", ALL[-1:], indirect=True)
"""For what does not depend on the version."""


@newest
def test_what_the_cache_can_hold_comes_back_and_the_rest_comes_near(inside: Inside) -> None:
    found = inside.call("packed_kv.round_trip")
    assert found["exact"]
    assert found["again"]
    assert found["shape"] == [3, 2, 180]
    assert found["zero"] == 0
    # Six times the largest scale.
    assert found["largest"] == 2688
    assert 0.085 < found["error"] < 0.105
    assert found["fp8 error"] < 0.03


@newest
def test_codes_stand_before_scales_and_the_even_one_in_the_low_nibble(inside: Inside) -> None:
    smallest = 1  # the scale of 16 zeros: not 0
    scales = {str(place): smallest for place in range(160, 180)}
    assert inside.call("packed_kv.layout") == {
        "0": 0x7 | 0x9 << 4,
        "1": 0x5,
        "8": 0x7,
        "159": 0x7 << 4,
        **scales,
        "160": 0x38,  # 1
        "161": 0x40,  # 2
        "179": 0x28,  # 0.25
    }


def test_vllm_takes_the_backend_for_nvfp4_and_plans_180_bytes(inside: Inside) -> None:
    full, sliding = inside.call("packed_kv.selection", dtype="nvfp4")
    for layer in (full, sliding):
        assert layer["backend"] == "sparkd_mods.mimo_nvfp4_kv.backend.Nvfp4DiffKvBackend"
        assert layer["name"] == "TRITON_ATTN_DIFFKV"
        assert layer["packed"]
        assert not layer["rounds queries"]
        assert layer["stored as"] == "torch.uint8"
    assert (full["window"], full["sinks"], full["page"]) == (None, False, 64 * 2 * 180)
    assert (sliding["window"], sliding["sinks"], sliding["page"]) == (128, True, 64 * 4 * 180)


def test_any_other_dtype_is_left_to_vllm(inside: Inside) -> None:
    full, sliding = inside.call("packed_kv.selection", dtype="auto")
    assert (full["packed"], full["page"], sliding["page"]) == (False, 64 * 2 * 640, 64 * 4 * 640)
    if inside.version != "0.24.0":
        full, _ = inside.call("packed_kv.selection", dtype="fp8")
        assert (full["packed"], full["page"]) == (False, 64 * 2 * 320)


@pytest.mark.parametrize("inside", ALL[:1], indirect=True)
def test_an_older_vllm_is_told_the_cache_s_shape(inside: Inside) -> None:
    assert inside.call("packed_kv.shape") == [5, 64, 2, 180]


def test_both_kernels_agree_with_float64(tmp_path: Path) -> None:
    done = subprocess.run(
        [PYTHON, Path(__file__).parent / "interpret_nvfp4_kv.py"],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "agents"),
            "TRITON_INTERPRET": "1",
            "TRITON_CACHE_DIR": str(tmp_path),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert len(found) == 5
    for one in found:
        assert one["same bytes"], one
        assert one["off"] < 0.002, one
