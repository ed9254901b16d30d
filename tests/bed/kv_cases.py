"""Models of which vLLM's page planner and ours are asked what a request takes."""

import random
from fractions import Fraction
from typing import Any

from sparkd.profile.kv import Kind, pool_blocks
from sparkd_mods.mimo_nvfp4_kv.layout import Slot


def _mimo(target: str, draft: str | None, blocks: tuple[int, int], layout: str) -> dict[str, Any]:
    """MiMo-V2.5 at TP=2, alone or with its DFlash drafter: one request of a million tokens."""
    common = {"key": 192, "value": 128, "dtype": target, "block": blocks[0]}
    if target == "nvfp4":
        common["head_bytes"] = Slot(192, 128).size
    layers = [{"count": 9, "heads": 2} | common, {"count": 39, "heads": 4, "window": 128} | common]
    if draft is not None:
        own = {"count": 5, "heads": 4, "key": 128, "value": 128, "window": 1024, "dtype": draft}
        layers.append(own | {"block": blocks[1]})
    return {"layers": layers, "layout": layout, "length": 1_000_000, "in_flight": 4096}


def _any_case(dice: random.Random) -> dict[str, Any]:
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


def _ours(case: dict[str, Any]) -> int:
    """Bytes of one request, or with `pool` the tokens that it holds."""
    kinds = [
        Kind(
            count=layers["count"],
            heads=layers["heads"],
            key=layers["key"],
            value=layers["value"],
            window=layers.get("window"),
            value_bytes=_VALUE_BYTES[layers["dtype"]],
            block=layers["block"],
        )
        for layers in case["layers"]
    ]
    packed = case["layout"].startswith("B")
    block_bytes, blocks = pool_blocks(kinds, case["length"], case["in_flight"], packed=packed)
    if "pool" in case:
        return int(case["pool"] // block_bytes / blocks * case["length"])
    return block_bytes * blocks


_VALUE_BYTES = {"bfloat16": Fraction(2), "float8_e4m3fn": Fraction(1), "nvfp4": Fraction(9, 16)}


def kv_cases() -> list[dict[str, Any]]:
    """Input of `plan_kv.py`: MiMo with and without its drafter, what the plan states side by side, chance."""
    dice = random.Random(20)
    bf16, fp8, nvfp4 = "bfloat16", "float8_e4m3fn", "nvfp4"
    beside = [
        _mimo(bf16, bf16, (16, 16), "LBNHC"),
        _mimo(fp8, fp8, (16, 16), "LBNHC"),
        _mimo(nvfp4, bf16, (64, 64), "BLNHC"),
        _mimo(nvfp4, bf16, (64, 16), "LBNHC"),
        _mimo(nvfp4, bf16, (16, 16), "LBNHC"),
    ]
    return [
        *beside,
        *(one | {"pool": 10 << 30} for one in beside),
        _mimo(bf16, None, (16, 16), "LBNHC"),
        _mimo(fp8, bf16, (16, 16), "LBNHC"),
        _mimo(fp8, fp8, (16, 16), "LBNHC"),
        _mimo(fp8, bf16, (32, 16), "LBNHC"),
        _mimo(fp8, bf16, (32, 32), "BLNHC"),
        *(_any_case(dice) for _ in range(200)),
    ]


def kv_differences(billed: list[int]) -> list[tuple[dict[str, Any], int, int]]:
    """Where vLLM bills something else than we do: the case, ours, vLLM's."""
    pairs = zip(kv_cases(), billed, strict=True)
    return [(case, _ours(case), theirs) for case, theirs in pairs if _ours(case) != theirs]
