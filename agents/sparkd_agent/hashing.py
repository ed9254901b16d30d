"""Bytes of a file, read and hashed at a bounded pace, without pushing anything out of memory."""

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

_BLOCK: Final = 1 << 20
_FORGET: Final = 64 << 20
"""So often the kernel is told that what was read is not needed again."""


def hash_piece(
    file: Path,
    offset: int,
    length: int,
    bytes_s: float,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[str, int]:
    """SHA-256 of the bytes from `offset` on, at most `length`, and how many there were.

    Reads at most `bytes_s` a second. Blocks; raises OSError.
    """
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_BLOCK))
    began = clock()
    done = forgotten = 0
    with file.open("rb", buffering=0) as opened:
        descriptor = opened.fileno()
        while done < length:
            count = os.preadv(descriptor, [buffer[: min(_BLOCK, length - done)]], offset + done)
            if not count:
                break
            digest.update(buffer[:count])
            done += count
            if done - forgotten >= _FORGET:
                os.posix_fadvise(descriptor, offset + forgotten, done - forgotten, os.POSIX_FADV_DONTNEED)
                forgotten = done
            early = done / bytes_s - (clock() - began)
            if early > 0:
                sleep(early)
        os.posix_fadvise(descriptor, offset + forgotten, done - forgotten, os.POSIX_FADV_DONTNEED)
    return digest.hexdigest(), done
