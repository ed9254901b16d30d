"""The kernel's log from now on, as far as it says anything about memory and the GPU."""

import errno
import os
import re
from pathlib import Path
from typing import Final

TELLING: Final = re.compile(r"NVRM: |nvidia|NV_ERR_|oom-killer|Out of memory|Killed process|mlx5_core")
_RECORD_BYTES: Final = 8 * 1024
"""The kernel gives one record a read, and refuses a smaller buffer (LOG_LINE_MAX and its dictionary)."""
_AT_ONCE: Final = 256
"""Records in one look: a burst goes on in the next."""


class KernelLog:
    """Without the right to read it (CAP_SYSLOG) there are no lines; `readable` says so."""

    def __init__(self, path: Path = Path("/dev/kmsg")) -> None:
        self._rest = b""
        try:
            self._descriptor: int | None = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._descriptor, 0, os.SEEK_END)
        except OSError:
            self._descriptor = None

    @property
    def readable(self) -> bool:
        return self._descriptor is not None

    def read(self) -> tuple[str, ...]:
        """Telling lines since the last call, oldest first."""
        found = []
        for _ in range(_AT_ONCE):
            record = self._record()
            if not record:
                break
            # `prio,seq,usec,flags;text`, then lines of `KEY=value` that begin with a space. A recorded file
            # holds several records, and its last one may not be whole yet.
            *whole, self._rest = (self._rest + record).split(b"\n")
            for line in whole:
                text = line.partition(b";")[2].decode(errors="replace")
                if not line.startswith(b" ") and TELLING.search(text):
                    found.append(text)
        return tuple(found)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _record(self) -> bytes:
        if self._descriptor is None:
            return b""
        while True:
            try:
                return os.read(self._descriptor, _RECORD_BYTES)
            except BlockingIOError:
                return b""
            except OSError as error:
                if (
                    error.errno != errno.EPIPE
                ):  # overwritten before we came: the next read gives the oldest left
                    return b""
