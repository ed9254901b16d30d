"""MiMo's fused QKV on real classes of each version: right rows on every rank, nothing silently left out."""

import pytest

from tests.contract.mods.conftest import Inside

pytestmark = [pytest.mark.mods, pytest.mark.timeout(300)]
SIZES = (1, 2, 4, 8, 16)


@pytest.mark.parametrize("scale_name", ["weight_scale", "weight_scale_inv"])
@pytest.mark.parametrize("order", ["plain", "interleaved"])
def test_every_rank_holds_its_rows_and_their_scales(inside: Inside, order: str, scale_name: str) -> None:
    for size in SIZES:
        ranks = inside.call("fused_qkv.load", order=order, scale_name=scale_name, mlp=None, size=size)
        assert [rank["wrong"] for rank in ranks] == [[]] * size
        assert [rank["unloaded"] for rank in ranks] == [[]] * size
