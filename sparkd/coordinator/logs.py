"""Log lines of ranks for people: asked from the nodes, which keep them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from sparkd.coordinator.reconciler import Reconciler
from sparkd.diagnosis.lines import stamped_lines
from sparkd.errors import NotFound
from sparkd.records.names import RankName
from sparkd.records.report import LogChunk

_ASK_TIMEOUT_S = 10.0


class LogReader:
    """One request for log lines. `rank` None means all; `generation` None means the newest.

    Raises NotFound when there is nothing to read from.
    """

    def __init__(
        self,
        reconciler: Reconciler,
        deployment: str,
        *,
        rank: int | None,
        generation: int | None,
        since: float | None,
        lines: int,
    ) -> None:
        self._reconciler = reconciler
        record = reconciler.fleet.gangs[deployment].record
        self._generation = record.generation if generation is None else generation
        self._nodes = record.nodes
        self._since = since
        self._lines = lines
        if not record.nodes or self._generation < 1:
            raise NotFound(f"{deployment} was not started yet: there are no log lines")
        ranks = range(len(record.nodes)) if rank is None else [rank]
        if rank is not None and not 0 <= rank < len(record.nodes):
            raise NotFound(f"{deployment} has ranks 0 to {len(record.nodes) - 1}, not {rank}")
        self._names = {r: str(RankName(deployment, self._generation, r)) for r in ranks}

    async def stream(self, *, follow: bool) -> AsyncIterator[bytes]:
        """NDJSON: `{"rank", "at", "stream", "text"}` per line, merged by time; live lines as they come."""
        answers = await asyncio.gather(*(self._ask(rank, name) for rank, name in self._names.items()))
        known = sorted((line for lines, _ in answers for line in lines), key=lambda line: float(line["at"]))
        for line in known[-self._lines :]:
            yield msgspec.json.encode(line) + b"\n"
        if not follow:
            return
        offsets = dict(zip(self._names, (offset for _, offset in answers), strict=True))
        queue: asyncio.Queue[tuple[int, LogChunk]] = asyncio.Queue()
        async with asyncio.TaskGroup() as group:
            pumps = [group.create_task(self._pump(rank, offsets[rank], queue)) for rank in self._names]
            try:
                while not self._reconciler.events.closed:
                    try:
                        rank, chunk = await asyncio.wait_for(queue.get(), 1.0)
                    except TimeoutError:
                        continue
                    for line in parse_lines(rank, chunk.text):
                        yield msgspec.json.encode(line) + b"\n"
            finally:
                for pump in pumps:
                    pump.cancel()

    async def _pump(self, rank: int, offset: int, into: "asyncio.Queue[tuple[int, LogChunk]]") -> None:
        node, name = self._nodes[rank], self._names[rank]
        queue = self._reconciler.read_log(node, name, offset)
        try:
            while True:
                into.put_nowait((rank, await queue.get()))
        finally:
            self._reconciler.unread_log(node, name, queue)

    async def _ask(self, rank: int, name: str) -> tuple[list[dict[str, Any]], int]:
        """The last lines of one rank and the offset after them; a note where a node does not answer."""
        args = {"rank": name, "lines": self._lines, "since": self._since}
        result = await self._reconciler.ask(self._nodes[rank], "log", args, _ASK_TIMEOUT_S)
        if result is None or not result.ok:
            silent = f"node {self._nodes[rank]} did not answer"
            text = silent if result is None else result.error or "no log"
            now = self._reconciler.now()
            return [{"rank": rank, "at": now.wall, "stream": "shim", "text": text}], 0
        lines = parse_lines(rank, str(result.result["text"]))
        return lines, int(result.result["offset"])


def parse_lines(rank: int, text: str) -> list[dict[str, Any]]:
    streams = {"1": "out", "2": "err"}
    return [
        {"rank": rank, "at": at, "stream": streams.get(stream, "shim"), "text": line}
        for at, stream, line in stamped_lines(text)
    ]
