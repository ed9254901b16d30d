"""The PTX that unpacks values on a GPU, carried out here, instruction by instruction."""

import random
import struct

import pytest

from sparkd_mods.autoround_mixed.halfwords import each, sixteenth, value
from sparkd_mods.autoround_mixed.packing import WIDTHS

RANDOM = random.Random(8)


def bf16(bits: int) -> float:
    (number,) = struct.unpack("<f", struct.pack("<I", bits << 16))
    return float(number)


def fma(a: int, b: int, c: int) -> int:
    """Of both halves; an inexact result would depend on its rounding, and is an error."""
    result = 0
    for shift in (0, 16):
        exact = bf16((a >> shift) & 0xFFFF) * bf16((b >> shift) & 0xFFFF) + bf16((c >> shift) & 0xFFFF)
        (bits,) = struct.unpack("<I", struct.pack("<f", exact))
        assert bits & 0xFFFF == 0, exact
        result |= (bits >> 16) << shift
    return result


def carried_out(ptx: str, **registers: int) -> int:
    held = {f"${name[1:]}": number for name, number in registers.items()}
    for statement in filter(None, (one.strip() for one in ptx.strip("{}").split(";"))):
        name, _, rest = statement.partition(" ")
        to, *names = (one.strip() for one in rest.split(","))
        if name == ".reg":
            continue
        given = [held[one] if one in held else int(one, 0) for one in names]
        if name == "mov.b32":
            held[to] = given[0]
        elif name == "shr.b32":
            held[to] = given[0] >> given[1]
        elif name == "lop3.b32":
            assert given[3] == 0xEA  # (a & b) | c
            held[to] = given[0] & given[1] | given[2]
        else:
            assert name == "fma.rn.bf16x2"
            held[to] = fma(*given)
    return held["$0"]


@pytest.mark.parametrize("bits", WIDTHS)
def test_every_value_at_every_position_is_itself_less_its_zero_point(bits: int) -> None:
    for position in range(each(bits)):
        ptx = value(bits, position)
        for wanted in range(1 << bits):
            # Whatever lies around it, and in the other half.
            field = ((1 << bits) - 1) << (position * bits)
            low = RANDOM.getrandbits(16) & ~field | wanted << (position * bits)
            other = RANDOM.getrandbits(16)
            made = carried_out(ptx, r1=low | other << 16)
            beside = (other >> (position * bits)) & ((1 << bits) - 1)
            assert bf16(made & 0xFFFF) == wanted - (1 << (bits - 1))
            assert bf16(made >> 16) == beside - (1 << (bits - 1))


def test_the_top_bits_of_three_planes_are_the_sixteenth_value() -> None:
    for low in range(8):
        high = RANDOM.getrandbits(3)
        top = 0
        for plane in range(3):
            half = RANDOM.getrandbits(15) | (low >> plane & 1) << 15
            other = RANDOM.getrandbits(15) | (high >> plane & 1) << 15
            top = carried_out(sixteenth(plane), r1=top, r2=half | other << 16)
        assert top == low | high << 16
