"""The agent's unix socket: `sparkd-agent status|ranks|logs`, also while the coordinator is dead.

One JSON object a line in, one a line out: `{"ask": "status"}`, `{"ask": "log", "rank": …, "lines": …}`, and
`{"ask": "memory"}`, of each process of each rank.
"""

import asyncio
import contextlib
import os
import socket
from pathlib import Path
from typing import Any

import msgspec

from sparkd.errors import Unavailable
from sparkd.records.document import Task
from sparkd_agent.daemon import Agent
from sparkd_agent.link import Link
from sparkd_agent.procfs import ProcFs

_LINE_BYTES = 64 * 1024


class LocalSocket:
    def __init__(self, agent: Agent, link: Link, path: Path, procfs: ProcFs) -> None:
        self._agent = agent
        self._procfs = procfs
        self._link = link
        self._path = path

    async def run(self) -> None:
        """Serve until cancelled. Only the agent's own user and root can connect."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            server = await asyncio.start_unix_server(self._serve, self._path, limit=_LINE_BYTES)
        finally:
            os.umask(before)
        try:
            async with server:
                await server.serve_forever()
        finally:
            self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.LimitOverrunError, ValueError):
            line = await reader.readline()
            writer.write(msgspec.json.encode(await self._answer(line)) + b"\n")
            await writer.drain()
        writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            asked = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            return {"error": f"no question: {error}"}
        match asked.get("ask"):
            case "status":
                return self._status()
            case "memory":
                return await asyncio.to_thread(memory_of, self._agent.pids(), self._procfs)
            case "log":
                task = Task(
                    "local", "log", {"rank": asked.get("rank"), "lines": asked.get("lines", 100)}, 5.0
                )
                result = await self._agent.answers.of_node(task)
                return result.result if result.ok else {"error": result.error}
            case other:
                return {"error": f"nothing is known of {other!r}; ask for status, memory or log"}

    def _status(self) -> dict[str, Any]:
        hello = self._agent.hello()
        watch = self._agent.watch
        return {
            "node": hello.facts.name,
            "id": hello.facts.id,
            "version": hello.version,
            "coordinator": self._link.state,
            "holder": hello.holder,
            "accepted": str(hello.accepted),
            "limits": list(hello.facts.limits),
            "watch": {
                "grade": watch.thrash.grade,
                "reason": watch.thrash.reason,
                "late_s": watch.late_s,
                "sample": msgspec.to_builtins(watch.sample),
            },
            "ranks": [msgspec.to_builtins(rank) for rank in hello.ranks],
        }


def memory_of(ranks: dict[str, frozenset[int]], procfs: ProcFs) -> dict[str, Any]:
    """Bytes of each process by rank. `pss` counts what several of them map once; null: it may not be read."""
    found: dict[str, Any] = {}
    for rank, pids in ranks.items():
        stats = [stat for pid in sorted(pids) if (stat := procfs.stat(pid)) is not None]
        found[rank] = [
            {
                "pid": stat.pid,
                "title": procfs.title(stat.pid) or stat.comm,
                "rss_bytes": stat.rss_bytes,
                "pss_bytes": procfs.pss(stat.pid),
            }
            for stat in stats
        ]
    return found


def ask(path: Path, question: dict[str, Any]) -> dict[str, Any]:
    """The client's side. Raises Unavailable when no agent answers there."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(10.0)
            connection.connect(str(path))
            connection.sendall(msgspec.json.encode(question) + b"\n")
            with connection.makefile("rb") as answers:
                return msgspec.json.decode(answers.readline(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError) as error:
        raise Unavailable(f"no agent answers on {path}: {error}") from error
