"""Free memory out of page cache. On a GB10 `cudaMalloc` sees MemFree only, and the cache counts as used."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DROP_CACHES: Final = Path("/proc/sys/vm/drop_caches")
_CLEAN_CACHE: Final = "1\n"


@dataclass(frozen=True, slots=True)
class Cache:
    """What this agent may drop. `control` None: only the checkpoint's own pages, not those of the node."""

    control: Path | None
    why_not: str = ""
    """Why there is no control, in words."""

    def drop_checkpoint(self, folder: Path) -> int:
        """The clean pages of the checkpoint's files; those that a process maps stay. Returns bytes of files.

        To be run in a thread: the kernel looks at every page.
        """
        size = 0
        try:
            entries = [entry for entry in os.scandir(folder) if entry.is_file()]
        except OSError:
            return 0
        for entry in entries:
            try:
                descriptor = os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                size += os.fstat(descriptor).st_size
            finally:
                os.close(descriptor)
        return size

    def drop_all(self) -> str | None:
        """The clean pages of the whole node; gives the reason if that is not possible."""
        if self.control is None:
            return self.why_not
        try:
            self.control.write_text(_CLEAN_CACHE)
        except OSError as error:
            return f"{self.control}: {error.strerror}"
        return None
