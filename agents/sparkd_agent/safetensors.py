"""Safetensors files by their headers alone: 8 bytes of length, JSON, data. 200 GB are judged in a second.

Whether the bytes behind the header are the right ones only a hash of all of them can tell.
"""

import os
import re
from pathlib import Path
from typing import Final

import msgspec

_LENGTH_BYTES: Final = 8
_HEADER_MAX_BYTES: Final = 100_000_000
"""The reference implementation refuses a longer one."""
POINTER: Final = b"version https://git-lfs"


_END: Final = re.compile(rb'"data_offsets"\s*:\s*\[\s*\d+\s*,\s*(\d+)\s*\]')
"""Inside a text of the metadata the quotes would be escaped."""


class HeaderUnreadable(ValueError):
    """Says in plain words what is there in place of a header."""


def read_header(path: Path) -> tuple[bytes, int]:
    """The header's own bytes, and how long the whole file must be to hold all tensors of it.

    Raises HeaderUnreadable, or OSError for a file that cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(max(_LENGTH_BYTES, len(POINTER)))
        if start.startswith(POINTER):
            raise HeaderUnreadable("it is a Git LFS pointer of a few lines, not the file itself")
        length = int.from_bytes(start[:_LENGTH_BYTES], "little")
        if size < _LENGTH_BYTES or not 0 < length <= min(size - _LENGTH_BYTES, _HEADER_MAX_BYTES):
            raise HeaderUnreadable(f"its {size:,} bytes hold no whole header")
        header = os.pread(file.fileno(), length, _LENGTH_BYTES)
    try:
        # Checked, and not made into objects: a header may be of megabytes, and the agent stays small.
        msgspec.json.decode(header, type=msgspec.Raw)
    except msgspec.MsgspecError as error:
        raise HeaderUnreadable(f"its header is damaged: {error}") from None
    if not header.lstrip().startswith(b"{"):
        raise HeaderUnreadable("its header is damaged: it is no JSON object")
    end = max((int(match[1]) for match in _END.finditer(header)), default=0)
    return header, _LENGTH_BYTES + length + end
