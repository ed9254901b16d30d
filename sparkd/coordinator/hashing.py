"""All bytes of a model, read on every node of a launch, piece by piece, as long as somebody listens."""

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from sparkd.coordinator.planner import member_at, members_now
from sparkd.coordinator.reconciler import Reconciler
from sparkd.fleet.nodes import Node
from sparkd.preflight.hashes import File, compare
from sparkd.records.defaults import DEFAULTS, Defaults
from sparkd.records.hashing import HashEnd, HashLine, HashStep
from sparkd.records.intent import Intent
from sparkd.records.preflight import Member


class Hashing:
    """One look at all bytes. Raises UsageError when the nodes for the launch are not there."""

    def __init__(
        self, reconciler: Reconciler, name: str, intent: Intent, limits: Defaults = DEFAULTS
    ) -> None:
        self._reconciler = reconciler
        self._model: dict[str, Any] = intent.profile.get("model", {})
        self._nodes = members_now(reconciler.fleet, name, intent)
        self._limits = limits
        self._steps: asyncio.Queue[HashStep] = asyncio.Queue()
        self._digests: dict[str, dict[File, list[str]]] = {}

    async def stream(self) -> AsyncIterator[bytes]:
        """NDJSON of HashLine. Whoever stops reading ends it: a node reads at most one piece more."""
        began = self._reconciler.now().mono
        members = await asyncio.gather(*(self._found(node) for node in self._nodes))
        readings = [
            asyncio.create_task(self._read(node, member))
            for node, member in zip(self._nodes, members, strict=True)
        ]
        try:
            while not all(reading.done() for reading in readings) or not self._steps.empty():
                try:
                    step = await asyncio.wait_for(self._steps.get(), self._limits.client_poll_s)
                except TimeoutError:
                    continue
                yield msgspec.json.encode(HashLine(step=step)) + b"\n"
            for reading in readings:
                reading.result()
        finally:
            for reading in readings:
                reading.cancel()
        told = tuple(compare(members, self._digests, self._limits.hash_piece_bytes))
        most = max((sum(_sizes(member).values()) for member in members), default=0)
        end = HashEnd(told, most, self._reconciler.now().mono - began)
        yield msgspec.json.encode(HashLine(end=end)) + b"\n"

    async def _found(self, node: Node) -> Member:
        args = {"model": self._model}
        result = await self._reconciler.ask(node.id, "files", args, self._limits.facts_s)
        return member_at(node, {"files": result})

    async def _read(self, node: Node, member: Member) -> None:
        files = _sizes(member)
        total, done = sum(files.values()), 0
        if not files:
            why = member.models_unknown or "it does not answer"
            self._steps.put_nowait(HashStep(node.name, 0, 0, error=why))
            return
        found = self._digests.setdefault(node.name, {})
        for (of, name), size in files.items():
            digests: list[str] = []
            for piece in range(max(1, math.ceil(size / self._limits.hash_piece_bytes))):
                told = await self._piece(node, of, name, piece * self._limits.hash_piece_bytes)
                if isinstance(told, str):
                    self._steps.put_nowait(HashStep(node.name, done, total, name, error=told))
                    return
                digest, count = told
                digests.append(digest)
                done += count
                self._steps.put_nowait(HashStep(node.name, done, total, name))
            found[of, name] = digests

    async def _piece(self, node: Node, of: str, name: str, offset: int) -> tuple[str, int] | str:
        """The digest and the bytes; else why there is none."""
        limits = self._limits
        args = {
            "model": self._model,
            "of": of,
            "file": name,
            "offset": offset,
            "bytes": limits.hash_piece_bytes,
            "bytes_s": limits.hash_bytes_s,
        }
        patience_s = limits.hash_wait_s + limits.hash_piece_bytes / limits.hash_bytes_s
        result = await self._reconciler.ask(node.id, "hash", args, patience_s)
        if result is None:
            return "it does not answer"
        if not result.ok:
            return result.error or "it cannot read it"
        try:
            return str(result.result["digest"]), int(result.result["bytes"])
        except (LookupError, ValueError, TypeError) as error:
            return f"its answer is not understood: {error!r}"


def _sizes(member: Member) -> dict[File, int]:
    """Of the weights and whatever lies beside them."""
    return {
        (of, name): size
        for of, checkpoint in member.checkpoints.items()
        for name, size in sorted(checkpoint.files.items())
    }
