"""The image that a vision model is asked about: a red circle, a blue square, a green triangle, a caption.

    .venv/bin/python -m tests.bed.make_canary_image

prints it as the data URL that stands in profiles/minimax-m3.yaml.
"""

import base64
import struct
import zlib

WIDTH, HEIGHT = 448, 280
CAPTION = "SPARK 84"
WHITE, BLACK, RED, BLUE, GREEN = range(5)
PALETTE = bytes((255, 255, 255, 0, 0, 0, 220, 20, 20, 20, 60, 220, 20, 150, 40))
DOT = 6
"""Pixels of one dot of a letter."""
LETTERS = {
    "S": ("01111", "10000", "10000", "01110", "00001", "00001", "11110"),
    "P": ("11110", "10001", "10001", "11110", "10000", "10000", "10000"),
    "A": ("01110", "10001", "10001", "11111", "10001", "10001", "10001"),
    "R": ("11110", "10001", "10001", "11110", "10100", "10010", "10001"),
    "K": ("10001", "10010", "10100", "11000", "10100", "10010", "10001"),
    " ": ("00000",) * 7,
    "8": ("01110", "10001", "10001", "01110", "10001", "10001", "01110"),
    "4": ("00010", "00110", "01010", "10010", "11111", "00010", "00010"),
}


def data_url() -> str:
    rows = [bytearray(WIDTH) for _ in range(HEIGHT)]
    for y in range(HEIGHT):
        for x in range(WIDTH):
            rows[y][x] = _colour(x, y)
    left = (WIDTH - len(CAPTION) * 6 * DOT) // 2
    for number, letter in enumerate(CAPTION):
        for line, dots in enumerate(LETTERS[letter]):
            for column, dot in enumerate(dots):
                if dot == "1":
                    x, y = left + (number * 6 + column) * DOT, 210 + line * DOT
                    for row in rows[y : y + DOT]:
                        row[x : x + DOT] = bytes([BLACK]) * DOT
    return f"data:image/png;base64,{base64.b64encode(_png(rows)).decode()}"


def _colour(x: int, y: int) -> int:
    if (x - 90) ** 2 + (y - 100) ** 2 <= 55**2:
        return RED
    if 170 <= x < 280 and 45 <= y < 155:
        return BLUE
    if 45 <= y < 155 and abs(x - 360) <= (y - 45) / 2:
        return GREEN
    return WHITE


def _png(rows: list[bytearray]) -> bytes:
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 3, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows), 9)
    parts = ((b"IHDR", header), (b"PLTE", PALETTE), (b"IDAT", pixels), (b"IEND", b""))
    made = b"\x89PNG\r\n\x1a\n"
    for kind, body in parts:
        made += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    return made


if __name__ == "__main__":
    print(data_url())  # noqa: T201 - it is asked to
