"""Files of /proc and /sys that are read every second: kept open, because opening costs more than reading, and
because a machine without memory may refuse to open anything.
"""

import os
from pathlib import Path
from typing import Final

_BYTES: Final = 32 * 1024
"""More than any file has that is read so; the kernel writes it anew for each read from its beginning."""


class KeptFile:
    """`read` gives nothing where the file is missing or does not want to be read."""

    def __init__(self, path: Path | str) -> None:
        try:
            self._descriptor: int | None = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._descriptor = None

    def read(self) -> bytes:
        if self._descriptor is None:
            return b""
        try:
            return os.pread(self._descriptor, _BYTES, 0)
        except OSError:  # its process ended; or a kernel without pressure accounting, which lets it be opened
            return b""

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
