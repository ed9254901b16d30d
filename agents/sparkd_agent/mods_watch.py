"""Whether the processes that hold a rank's model have applied what the profile requires of them."""

from collections.abc import Iterable, Sequence
from typing import Final

from sparkd.engine.plugin import ModRequest, ModsSeen
from sparkd.records.defaults import DEFAULTS
from sparkd_agent.logs import RankLog

_SLICE_BYTES: Final = 1 << 20


class ModsWatch:
    """`missing`: why the rank may not serve; None while nothing is known against it."""

    def __init__(
        self, requests: Sequence[ModRequest], log: RankLog, settle_s: float = DEFAULTS.mods_settle_s
    ) -> None:
        self.missing: str | None = None
        self._settle_s = settle_s
        self._loaded_at: float | None = None
        self._required = tuple(request for request in requests if request.required)
        self._log = log
        self._seen = ModsSeen()
        self._judged = not self._required

    def read(self, lines: Iterable[str]) -> None:
        if not self._judged:
            self._seen = self._seen.read(lines)

    def judge(self, processes: Sequence[tuple[str, int]], now: float) -> bool:
        """Call it again and again once the model is loaded; `processes` (title, pid) hold it.

        True once, if that is bad news. A worker may be seen later than the line that its weights are loaded,
        so the processes are asked for a little later.
        """
        if self._judged:
            return False
        if self._loaded_at is None:
            self._loaded_at = now
        if not processes or now - self._loaded_at < self._settle_s:
            return False
        self._judged = True
        if self._missing(processes) is not None and self._read_all():
            self.missing = self._missing(processes)
        return self.missing is not None

    def _missing(self, processes: Sequence[tuple[str, int]]) -> str | None:
        for title, pid in processes:
            if (why := self._seen.missing(self._required, pid, title)) is not None:
                return why
        return None

    def _read_all(self) -> bool:
        """Of a flood only the end was read, and an adopted rank told before this agent came.

        False if the log does not reach back to the rank's start: then nothing can be said.
        """
        offset, lines = 0, self._log.read(0, _SLICE_BYTES)
        if lines.skipped_bytes:
            return False
        while lines.data:
            self._seen = self._seen.read(line.text for line in lines.lines)
            offset = lines.next_offset
            lines = self._log.read(offset, _SLICE_BYTES)
        return True
