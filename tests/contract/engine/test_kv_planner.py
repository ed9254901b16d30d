"""Our sum of what a request's KV takes, against the planner of the vLLM that is installed."""

import json
import random
import subprocess
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from sparkd.profile.kv import Kind, request_bytes

REPOSITORY = Path(__file__).parents[3]
ENGINE = REPOSITORY / ".venv-vllm" / "bin" / "python"

pytestmark = pytest.mark.vllm


def mimo(target: str, draft: str | None, blocks: tuple[int, int], layout: str) -> dict[str, Any]:
    """MiMo-V2.5 at TP=2, alone or with its DFlash drafter: one request of a million tokens."""
    common = {"key": 192, "value": 128, "dtype": target, "block": blocks[0]}
    layers = [{"count": 9, "heads": 2} | common, {"count": 39, "heads": 4, "window": 128} | common]
    if draft is not None:
        own = {"count": 5, "heads": 4, "key": 128, "value": 128, "window": 1024, "dtype": draft}
        layers.append(own | {"block": blocks[1]})
    return {"layers": layers, "layout": layout, "length": 1_000_000, "in_flight": 4096}


def any_case(dice: random.Random) -> dict[str, Any]:
    block = dice.choice([16, 32, 64])
    dtypes = ("bfloat16", "float8_e4m3fn")
    target = dice.choice(dtypes)

    def layers(most: int, window: int | None, dtype: str, own_block: int) -> dict[str, Any]:
        return {
            "count": dice.randint(1, most),
            "heads": dice.choice([1, 2, 4, 8]),
            "key": dice.choice([128, 192]),
            "value": 128,
            "window": window,
            "dtype": dtype,
            "block": own_block,
        }

    kinds = [layers(40, None, target, block), layers(60, 128, target, block)]
    kinds.append(layers(8, 1024, dice.choice(dtypes), dice.choice([16, block])))
    return {
        "layers": kinds[: dice.choice([1, 2, 3, 3])],
        "layout": dice.choice(["LBNHC", "BLNHC"]),
        "length": dice.choice([4096, 131_072, 1_000_000]),
        "in_flight": dice.choice([2048, 16_384]),
    }


def ours(case: dict[str, Any]) -> int:
    kinds = [
        Kind(
            count=layers["count"],
            heads=layers["heads"],
            key=layers["key"],
            value=layers["value"],
            window=layers.get("window"),
            value_bytes=Fraction(2 if layers["dtype"] == "bfloat16" else 1),
            block=layers["block"],
        )
        for layers in case["layers"]
    ]
    return request_bytes(kinds, case["length"], case["in_flight"], packed=case["layout"].startswith("B"))


def test_a_request_costs_what_vllm_bills() -> None:
    assert ENGINE.exists(), "no vLLM here: make vllm"
    dice = random.Random(20)
    bf16, fp8 = "bfloat16", "float8_e4m3fn"
    cases = [
        mimo(bf16, None, (16, 16), "LBNHC"),
        mimo(fp8, bf16, (16, 16), "LBNHC"),
        mimo(fp8, fp8, (16, 16), "LBNHC"),
        mimo(fp8, bf16, (32, 16), "LBNHC"),
        mimo(fp8, bf16, (32, 32), "BLNHC"),
        *(any_case(dice) for _ in range(200)),
    ]
    done = subprocess.run(
        [ENGINE, REPOSITORY / "tests" / "bed" / "plan_kv.py"],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    differences = [
        (case, ours(case), billed)
        for case, billed in zip(cases, json.loads(done.stdout), strict=True)
        if ours(case) != billed
    ]
    assert differences == []
