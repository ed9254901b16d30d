"""What one KV head of one token takes in the cache, and where its parts stand.

    K codes | V codes | K scales | V scales

A code is an e2m1 number, two to a byte, the even index in the low nibble. A scale is the e4m3 number that 16
of them share. Codes stand first: those of 192 and 128, 96 and 64 bytes, keep the alignment of the slot.
"""

from dataclasses import dataclass
from typing import Final

GROUP: Final = 16
"""Values that share a scale."""
CODES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""What the lower three bits of a code stand for; the fourth is the sign."""
LARGEST: Final = CODES[-1]
WORD: Final = 4
"""Bytes: what every part is aligned to."""


@dataclass(frozen=True, slots=True)
class Slot:
    """`key` and `value`: the head's widths, multiples of 16. All others are offsets in bytes from its begin.

    Raises ValueError for other widths.
    """

    key: int
    value: int

    def __post_init__(self) -> None:
        if self.key <= 0 or self.value <= 0 or self.key % GROUP or self.value % GROUP:
            raise ValueError(f"heads of {self.key} and {self.value}: 16 values share a scale")

    @property
    def value_codes(self) -> int:
        return self.key // 2

    @property
    def key_scales(self) -> int:
        return (self.key + self.value) // 2

    @property
    def value_scales(self) -> int:
        return self.key_scales + _whole(self.key // GROUP)

    @property
    def size(self) -> int:
        """All of it: 180 bytes for 192 and 128."""
        return self.value_scales + _whole(self.value // GROUP)


def _whole(size: int) -> int:
    """In whole words: a kernel reads four scales at a time."""
    return -(-size // WORD) * WORD
