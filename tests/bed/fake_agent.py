"""An agent as a test wants it: raw requests of the agent protocol, or a whole node that plays along."""

import threading
import time
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import msgspec

from sparkd.records.document import Document, Revision
from sparkd.records.rank import RankSpec
from sparkd.records.report import (
    Caller,
    EngineFacts,
    Hello,
    NodeFacts,
    ProbeReport,
    RankReport,
    Report,
    Sample,
    TaskResult,
)
from tests.bed.coordinator import Answer, Coordinator

BOOT = "boot-of-tests"


class FakeAgent:
    """Says what it is told to, one request a call. `seq` rises by itself, as an agent's does."""

    def __init__(
        self, coordinator: Coordinator, node: str, run: str = "run-1", address: str = "127.0.0.1"
    ) -> None:
        self.coordinator = coordinator
        self.node = node
        self.run = run
        self.address = address
        self.seq = 0

    def caller(self, **changes: Any) -> Caller:
        self.seq += 1
        return replace(Caller(self.node, BOOT, self.run, self.seq), **changes)

    def hello(self, *, caller: Caller | None = None, **changes: Any) -> Answer:
        facts = NodeFacts(
            id=self.node,
            name=self.node,
            address=self.address,
            fabric_address=self.address,
            fabric_interface="lo",
            engines=(EngineFacts("default", ("/opt/vllm/bin/python", "-m", "vllm"), "0.32.0"),),
            model_roots=("/models",),
            local=self.address == "127.0.0.1",
        )
        hello = Hello(
            caller=caller or self.caller(),
            facts=facts,
            version="test",
            holder=self.coordinator.holder,
            wall=time.time(),
            mono=time.monotonic(),
        )
        return self.coordinator.ask_as_agent("POST", "/agent/v1/hello", replace(hello, **changes))

    def report(self, *, caller: Caller | None = None, **changes: Any) -> Answer:
        report = Report(
            caller=caller or self.caller(),
            wall=time.time(),
            mono=time.monotonic(),
            applied=Revision(0, 0),
        )
        return self.coordinator.ask_as_agent("POST", "/agent/v1/report", replace(report, **changes))

    def document(self, after: str = "0.0", *, caller: Caller | None = None) -> Answer:
        query = {**msgspec.to_builtins(caller or self.caller()), "after": after}
        return self.coordinator.ask_as_agent("GET", f"/agent/v1/document?{urlencode(query)}")


class PlayedNode:
    """A node whose every question is answered well and whose ranks are ready at once, until `stop`."""

    def __init__(
        self, coordinator: Coordinator, node: str, run: str = "run-1", address: str = "127.0.0.1"
    ) -> None:
        self._agent = FakeAgent(coordinator, node, run, address)
        self.document: Document | None = None
        self.facts: dict[str, Any] = {"wall": time.time()}
        """What it says of its machine."""
        self.sample: Sample | None = None
        self.records: list[dict[str, Any]] = []
        """Of its own black box."""
        self._stop = threading.Event()
        self._answered: set[str] = set()
        self._ranks: dict[str, RankReport] = {}
        assert self._agent.hello().status == 200
        self._thread = threading.Thread(target=self._play, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def fall(self, rank: str, why: str) -> None:
        self._ranks[rank] = RankReport(rank, "fallen", fell=why)

    def _play(self) -> None:
        """The newest document with every beat, instead of a long poll beside the beats."""
        while not self._stop.wait(0.02):
            try:
                self.document = self._beat(self.document)
            except OSError:
                return  # the coordinator is gone

    def _beat(self, document: Document | None) -> Document | None:
        results = self._answers(document) if document is not None else ()
        applied = document.order if document is not None else Revision(0, 0)
        told = tuple(self._ranks.values())
        answer = self._agent.report(applied=applied, ranks=told, results=results, sample=self.sample)
        if answer.status != 200:
            self._agent.hello(ranks=told)
            return None
        self._ranks = {name: rank for name, rank in self._ranks.items() if rank.state != "gone"}
        newest = answer.json["newest"]
        if document is not None and (newest["term"], newest["revision"]) == (applied.term, applied.revision):
            return document
        found = self._agent.document(str(applied))
        if found.status != 200:
            return document
        document = msgspec.json.decode(found.body, type=Document)
        listed = {spec.name: spec for spec in document.ranks}
        for name in set(self._ranks) - set(listed):
            self._ranks[name] = RankReport(name, "gone")
        self._ranks |= {name: _serving(spec) for name, spec in listed.items() if name not in self._ranks}
        return document

    def _answers(self, document: Document) -> tuple[TaskResult, ...]:
        results = []
        for task in document.tasks:
            if task.id in self._answered:
                continue
            self._answered.add(task.id)
            ports = [{**port, "free": True} for port in task.args.get("ports", [])]
            found = {
                "port": {"ports": ports},
                "files": {"model": {"path": "/models/tiny", "bytes": 1}},
                "facts": self.facts,
                # A test of the fabric: it listens, reaches nobody and was called by nobody.
                "probe": {"port": 40_000, "reached": [], "heard": []},
                "log": {"text": "1000000000 2000000000 1 a line of the log\n", "offset": 42},
                "blackbox": {"records": self.records},
                "stacks": {"processes": [{"pid": 1, "title": "VLLM::Worker", "lines": ["Thread 0x1"]}]},
            }
            results.append(TaskResult(task.id, ok=True, result=found[task.kind]))
        return tuple(results)


def _serving(spec: RankSpec) -> RankReport:
    if spec.kind == "probe":
        return RankReport(spec.name, "fallen", fell="it has no torch to try the fabric with")
    probe = ProbeReport(api_up=True, warmed=True, proof_age_s=0.0) if spec.probe is not None else None
    return RankReport(spec.name, "running", pid=1, phase="serving", since=time.time(), probe=probe)
