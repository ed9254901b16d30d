"""What a head of a token takes in a cache of 4 bits."""

import pytest

from sparkd_mods.mimo_nvfp4_kv.layout import Slot


def test_mimo_takes_180_bytes() -> None:
    slot = Slot(192, 128)
    assert (slot.value_codes, slot.key_scales, slot.value_scales, slot.size) == (96, 160, 172, 180)


@pytest.mark.parametrize(
    ("key", "value", "size"), [(128, 128, 144), (64, 64, 72), (96, 80, 104), (16, 16, 24)]
)
def test_every_part_begins_at_a_whole_word(key: int, value: int, size: int) -> None:
    slot = Slot(key, value)
    assert slot.size == size
    assert all(begin % 4 == 0 for begin in (slot.value_codes, slot.key_scales, slot.value_scales))


@pytest.mark.parametrize(("key", "value"), [(192, 100), (0, 16), (24, 128)])
def test_a_width_without_whole_groups_is_refused(key: int, value: int) -> None:
    with pytest.raises(ValueError, match="16 values share a scale"):
        Slot(key, value)
