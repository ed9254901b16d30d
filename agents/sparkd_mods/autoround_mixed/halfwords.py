"""The order in which the kernels read words, and the PTX that makes numbers of them: text, no torch.

GPTQ's order has 32 inputs of one output in `bits` words, so what a warp loads side by side belongs to
different outputs, and values of 3 bits straddle words. The kernels want what a tensor core multiplies:
pairs of inputs in the two halves of a register. So each matrix is re-ordered once, after it was loaded:

    int16 [inputs / STEP, bits, outputs, LANES]     STEP = 16 * LANES

A column of STEP inputs is `bits` planes of LANES halfwords, and value j of lane l is input j * LANES + l. A
halfword holds 16 / bits values, lowest first. At 3 bits those are five; the top bits of the three planes are
the bits of the sixteenth.
"""

import struct

LANES = 32
STEP = 16 * LANES


def each(bits: int) -> int:
    """The values that a halfword holds whole."""
    return 16 // bits


def value(bits: int, position: int) -> str:
    """PTX: of two halfwords in $1 the values at `position`, less their zero point, exact, as bf16x2 in $0.

    A bf16 of 128 + n has n in its lowest seven bits: so a mask makes a number where a conversion would
    run at a fraction of the rate. Values above the lowest bits are taken as multiples, to save a shift.
    """
    shift, above = _place(bits, position)
    take = f"shr.b32 t, $1, {shift};" if shift else "mov.b32 t, $1;"
    if bits == 8:
        # Wider than the seven: two halves, 16 * high + low.
        return _block(
            take,
            _lifted("u", "t", 0x000F),
            "shr.b32 t, t, 4;",
            _lifted("t", "t", 0x000F),
            _multiplied("t", "t", 16.0, _both(-(16 * 128.0 + 256))),
            _multiplied("$0", "t", 1.0, "u"),
        )
    scale = 2.0**-above
    zero = 1 << (bits - 1)
    mask = ((1 << bits) - 1) << above
    return _block(take, _lifted("u", "t", mask), _multiplied("$0", "u", scale, _both(-(128 * scale + zero))))


def sixteenth(plane: int) -> str:
    """PTX: $1 with bit `plane` of both halves set to the top bits of $2."""
    return _block(f"shr.b32 t, $2, {15 - plane};", f"lop3.b32 $0, t, {0x10001 << plane:#x}, $1, 0xEA;")


def _place(bits: int, position: int) -> tuple[int, int]:
    """How far to shift a halfword right, and where the value lies then."""
    at = position * bits
    room = 7 // bits * bits
    return (at // room * room, at % room) if room else (at, 0)


def _block(*lines: str) -> str:
    return " ".join(("{ .reg .b32 t, u, c, d;", *lines, "}"))


def _lifted(to: str, source: str, mask: int) -> str:
    return f"lop3.b32 {to}, {source}, {mask * 0x10001:#x}, 0x43004300, 0xEA;"  # (source & mask) | 128


def _multiplied(to: str, source: str, factor: float, more: str) -> str:
    return f"mov.b32 c, {_both(factor)}; mov.b32 d, {more}; fma.rn.bf16x2 {to}, {source}, c, d;"


def _both(number: float) -> str:
    """The same bf16 in both halves; `number` must be one."""
    (bits,) = struct.unpack("<I", struct.pack("<f", number))
    if bits & 0xFFFF:
        raise ValueError(f"{number} is no bf16")
    return f"{(bits >> 16) * 0x10001:#x}"
