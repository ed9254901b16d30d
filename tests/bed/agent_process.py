"""A real agent in a process of its own, and a coordinator that a test writes line by line."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import parse_qs, urlsplit

import msgspec

from sparkd.records.document import Document, Revision
from sparkd.records.report import Hello, RankReport, Report, ReportAnswer, TaskResult, Welcome
from sparkd_agent.procfs import ProcFs
from sparkd_agent.runtime.manager import SystemBus
from tests.bed.coordinator import PATIENCE_S
from tests.bed.ranks import by_systemd

T = TypeVar("T")
HOLDER = "holder-of-tests"
INSTANCE = "instance-1"


def until(look: Callable[[], T], what: str) -> T:
    """Poll until `look()` is true; give what it gave."""
    end = time.monotonic() + PATIENCE_S
    while not (seen := look()):
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.02)
    return seen


class ScriptedCoordinator:
    """Serves the document it was given last to whoever asks, whether that is right or not.

    `broken` maps a path's last word (hello, document, report) to a status that is answered instead, `garbage`
    to a body. All that was asked is kept, in order.
    """

    def __init__(self, port: int = 0) -> None:
        self.hellos: list[Hello] = []
        self.reports: list[Report] = []
        self.polls: list[dict[str, str]] = []
        self.asked_at: list[tuple[float, str]] = []
        self.broken: dict[str, int] = {}
        self.garbage: dict[str, bytes] = {}
        self.newest: Revision | None = None
        """What the answers to reports call the newest document; None: what the agent has applied."""
        self.welcome = Welcome(1, HOLDER, INSTANCE, lease_s=6.0, beat_s=1.0)
        self._port = port
        self._document: Document | None = None
        self._newest_poll = 0
        self._changed = threading.Condition()
        self._closing = False

    def __enter__(self) -> Self:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                status, answer = outer._answer(self.path, body)
                self.send_response(status)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)
                self.close_connection = self.close_connection or outer._closing

            do_GET = do_POST = handle_one  # noqa: N815  http.server's names

            def log_message(self, *_: object) -> None:
                pass

            def handle(self) -> None:
                with suppress(ConnectionError):  # the agent was killed
                    super().handle()

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """As a coordinator that dies: connections break, and nothing listens any more. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def publish(self, revision: int, **content: Any) -> Document:
        """Give a document at once to the poll that waits, or to the next one, newer or not."""
        fields = {"term": 1, "holder": HOLDER, "instance": INSTANCE, "revision": revision, **content}
        document = Document(**fields)
        with self._changed:
            self._document = document
            self._changed.notify_all()
        return document

    def taken(self) -> None:
        """Wait until the document was fetched; what the agent made of it is in its next reports."""
        until(lambda: self._document is None, "the document to be fetched")

    def _answer(self, target: str, body: bytes) -> tuple[int, bytes]:
        parts = urlsplit(target)
        what = parts.path.rpartition("/")[2]
        self.asked_at.append((time.monotonic(), what))
        answer: object = None
        match what:
            case "hello":
                self.hellos.append(msgspec.json.decode(body, type=Hello))
                answer = self.welcome
            case "report":
                report = msgspec.json.decode(body, type=Report)
                self.reports.append(report)
                answer = ReportAnswer(report.caller.seq, 6.0, self.newest or report.applied)
            case "document":
                self.polls.append({key: values[0] for key, values in parse_qs(parts.query).items()})
        if what in self.broken:
            return self.broken[what], b"{}"
        if what in self.garbage:
            return 200, self.garbage[what]
        return self._poll() if what == "document" else (200, msgspec.json.encode(answer))

    def _poll(self) -> tuple[int, bytes]:
        with self._changed:
            # Of an agent that was killed a poll may still wait here; the newest one is the living one's.
            self._newest_poll = mine = self._newest_poll + 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._document or self._closing or self._newest_poll != mine, 20.0)
            if self._newest_poll != mine:
                return 204, b""
            document, self._document = self._document, None
        return (204, b"") if document is None else (200, msgspec.json.encode(document))

    # What the agent said.

    def rank(self, name: str, state: str) -> RankReport:
        """Wait until the newest report shows the rank in that state."""

        def look() -> RankReport | None:
            newest = self.reports[-1] if self.reports else None
            found = [rank for rank in newest.ranks if rank.name == name] if newest else []
            return found[0] if found and found[0].state == state else None

        return until(look, f"{name} to be {state}; last: {self.reports[-1:]}")

    def refusal(self, name: str, code: str) -> str:
        """Wait until the newest report refuses the rank with that code; gives the reason."""

        def look() -> str | None:
            newest = self.reports[-1] if self.reports else None
            reasons = (
                [r.reason for r in newest.refusals if (r.rank, r.code) == (name, code)] if newest else []
            )
            return reasons[0] if reasons else None

        return until(look, f"{name} to be refused as {code}; last: {self.reports[-1:]}")

    def result(self, task: str) -> TaskResult:
        found: list[TaskResult] = until(
            lambda: [one for report in tuple(self.reports) for one in report.results if one.id == task],
            f"an answer to {task}",
        )
        return found[0]

    def applied(self, order: Revision) -> Report:
        """Wait until a report says that this revision was made true."""
        found: list[Report] = until(
            lambda: [one for one in tuple(self.reports) if one.applied == order], f"{order} to be applied"
        )
        return found[-1]

    def later(self, count: int = 2) -> Report:
        """So many whole reports from now on: time enough for the agent to have done what it must not do."""
        before = len(self.reports)
        until(lambda: len(self.reports) >= before + count, "more reports")
        return self.reports[-1]

    def told(self, kind: str) -> list[str]:
        """Reasons of the agent's own events of that kind."""
        return [one.reason for report in tuple(self.reports) for one in report.events if one.kind == kind]


ENGINE = """#!{python} -IS
import os, sys, time
print("the engine is up", flush=True)
while not os.path.exists({stop!r}):
    time.sleep(0.02)
sys.exit(7)
"""


@dataclass
class AgentProcess:
    """An agent with an engine that lives until a file exists, and then exits with 7."""

    folder: Path
    url: str
    node: str = "node-1"
    holder: str = HOLDER
    identity: Path | None = None
    """The folder of its certificate, for a coordinator that wants one."""
    earlier_urls: tuple[str, ...] = ()
    """Of the list of addresses, those before `url`."""
    process: "subprocess.Popen[bytes] | None" = None
    env: dict[str, str] = field(default_factory=dict)
    """Beside the test's own."""
    guest: bool = field(default_factory=lambda: not by_systemd())
    """As in a local set. One that is not protects itself, and takes the machine for its node."""
    python: Path | None = None
    """Of an engine, instead of the one that only lives."""
    fabric_address: str = ""
    """Where it meets others, if that is not where it is managed."""

    @property
    def stop_ranks(self) -> Path:
        return self.folder / "stop"

    def start(self) -> None:
        engine = self.python or self.folder / "engine"
        if self.python is None:
            engine.write_text(ENGINE.format(python=sys.executable, stop=str(self.stop_ranks)))
            engine.chmod(0o755)
        met = f"fabric_address = {json.dumps(self.fabric_address)}\n" if self.fabric_address else ""
        token = self.folder / "agent.token"
        token.touch(0o600)
        token.write_text("token-of-tests")
        config = self.folder / "agent.toml"
        config.write_text(
            f"[node]\nid = {json.dumps(self.node)}\nname = {json.dumps(self.node)}\n"
            f"address = {json.dumps('127.0.0.2' if met else '127.0.0.1')}\n"
            f'fabric_interface = "lo"\n{met}local = {json.dumps(self.guest)}\n'
            f"[coordinator]\nurls = {json.dumps([*self.earlier_urls, self.url])}\n"
            f"holder = {json.dumps(self.holder)}\ntoken_file = {json.dumps(str(token))}\n"
            + (f"identity = {json.dumps(str(self.identity))}\n" if self.identity else "")
            # Everything of a test is its own user's.
            + ("" if self.guest else '[rank]\nuser = "root"\n')
            + f"[engine.default]\npython = {json.dumps(str(engine))}\n"
            f"[models]\nroots = [{json.dumps(str(self.folder))}]\n"
            f"[state]\ndir = {json.dumps(str(self.folder / 'state'))}\n"
            f"socket = {json.dumps(str(self.folder / 'agent.sock'))}\n"
        )
        with (self.folder / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "sparkd_agent", "run", "--config", str(config)],
                env={**os.environ, **self.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        assert self.process is not None
        assert self.process.poll() is None, self.log
        return self.process.pid

    @property
    def log(self) -> str:
        return (self.folder / "agent.log").read_text()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        assert self.process is not None
        self.process.wait(PATIENCE_S)

    def rank_pids(self) -> set[int]:
        """Living processes of ranks of this very agent, by its folder in their environment."""
        procfs = ProcFs()
        ranks = str(self.folder / "state" / "ranks")
        return {
            pid
            for pid, stat in procfs.stats().items()
            if not stat.ended and (procfs.environ_value(pid, "SPARKD_RANK_FOLDER") or "").startswith(ranks)
        }

    def end(self) -> None:
        """The agent, then what it started: a shim ends with the last process of its rank."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        self.stop_ranks.touch()
        until(lambda: not self.rank_pids(), "the ranks to end")
        if by_systemd():
            self._let_go_of_units()

    def _let_go_of_units(self) -> None:
        """As the next agent on this folder would; names of ranks are the same in many tests."""
        bus = SystemBus(PATIENCE_S)
        mine = [one.rank for one in bus.units() if (one.folder or "").startswith(str(self.folder))]
        for rank in mine:
            bus.tidy(rank)
        until(lambda: not {one.rank for one in bus.units()} & set(mine), "the units to go")


@contextmanager
def agent_process(folder: Path, url: str) -> Iterator[AgentProcess]:
    agent = AgentProcess(folder, url)
    agent.start()
    try:
        yield agent
    finally:
        agent.end()
