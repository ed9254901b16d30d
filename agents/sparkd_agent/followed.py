"""The log lines that somebody at the coordinator follows live: a report carries what is new."""

from pathlib import Path

from sparkd.records.defaults import Defaults
from sparkd.records.document import Document
from sparkd.records.names import parse_rank_name
from sparkd.records.report import LogChunk
from sparkd_agent.logs import RankLog
from sparkd_agent.rankfolder import RankFolder


class Followed:
    def __init__(self, ranks_dir: Path, limits: Defaults) -> None:
        self._ranks_dir = ranks_dir
        self._limits = limits
        self._at: dict[str, tuple[int, int]] = {}
        """By rank: where the following began, and how far it has come. Bytes."""

    def lines(self, document: Document | None) -> tuple[LogChunk, ...]:
        if document is None or not document.follow:
            return ()
        chunks = []
        for follow in document.follow:
            begin, at = self._at.get(follow.rank, (-1, 0))
            if begin != follow.offset:
                begin, at = follow.offset, follow.offset
                self._at[follow.rank] = (begin, at)
            if parse_rank_name(follow.rank) is None or not (self._ranks_dir / follow.rank).is_dir():
                continue
            log = RankLog(RankFolder(self._ranks_dir / follow.rank).log)
            found = log.follow(at, self._limits.report_log_bytes)
            if found.data:
                text = found.data.decode(errors="replace")
                chunks.append(LogChunk(follow.rank, found.offset, text, found.skipped_bytes))
        return tuple(chunks)

    def told(self, chunks: tuple[LogChunk, ...]) -> None:
        """The coordinator has them."""
        for chunk in chunks:
            begin, _ = self._at.get(chunk.rank, (0, 0))
            self._at[chunk.rank] = (begin, chunk.offset + len(chunk.text.encode()))
