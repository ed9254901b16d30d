"""A real coordinator in a process of its own, on free loopback ports, and raw HTTP to both of its servers."""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec

from tests.bed.ports import free_port

PATIENCE_S = 30.0
"""For what takes well under a second on an idle machine."""

# The command line has no options for time-outs, because nobody should need them; a test does.
_RUN = """
import json, sys
from dataclasses import replace
from pathlib import Path
from sparkd.coordinator.serve import run
from sparkd.records.defaults import DEFAULTS
state, rest, agents, token, unix, limits = sys.argv[1:]
run(state_dir=Path(state), rest=rest, agents=agents, token_file=Path(token) if token else None,
    rest_socket=Path(unix) if unix else None, limits=replace(DEFAULTS, **json.loads(limits)))
"""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def kind(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def send(
    port: int,
    method: str,
    target: str,
    *,
    token: str | None = None,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = PATIENCE_S,
) -> Answer:
    """One request. `body`: bytes as they are, an iterator of bytes as chunks, anything else as JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    fields = {"connection": "close", **({"authorization": f"Bearer {token}"} if token else {})}
    if body is not None and not isinstance(body, bytes | Iterator):
        body = msgspec.json.encode(body)
        fields["content-type"] = "application/json"
    try:
        connection.request(method, target, body=body, headers=fields | dict(headers or {}))
        response = connection.getresponse()
        names = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, names, response.read())
    finally:
        connection.close()


@dataclass
class Coordinator:
    """`nodes` are enrolled: id -> name. `limits` replace entries of the table of defaults."""

    folder: Path
    nodes: dict[str, str] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    holder: str = "holder-of-tests"
    token: str = "token-of-tests"
    rest: int = field(default_factory=free_port)
    agents: int = field(default_factory=free_port)
    rest_host: str = "127.0.0.1"
    unix: Path | None = None
    """Where REST listens besides."""
    process: "subprocess.Popen[bytes] | None" = None
    env: dict[str, str] = field(default_factory=dict)
    """Beside the test's own."""

    @property
    def state(self) -> Path:
        return self.folder / "coordinator"

    @property
    def token_file(self) -> Path:
        return self.folder / "token"

    @property
    def log(self) -> str:
        return (self.folder / "coordinator.log").read_text()

    def start(self) -> None:
        """Start, or start anew on what the last life left, and wait until it answers."""
        self.state.mkdir(mode=0o700, exist_ok=True)
        if not self.token_file.exists():
            self.token_file.touch(0o600)
            self.token_file.write_text(self.token)
        holder = {"holder": self.holder, "nodes": [{"id": i, "name": n} for i, n in self.nodes.items()]}
        (self.state / "holder.json").write_text(json.dumps(holder))
        self.launch(str(self.token_file))

    def launch(self, token_file: str = "") -> None:
        """The process, on what lies in its state folder."""
        servers = (f"{self.rest_host}:{self.rest}", f"127.0.0.1:{self.agents}")
        places = (str(self.state), *servers, token_file, str(self.unix or ""))
        with (self.folder / "coordinator.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", _RUN, *places, json.dumps(self.limits)],
                env={**os.environ, **self.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        end = time.monotonic() + PATIENCE_S
        while not self.answers():
            assert self.process.poll() is None, self.log
            assert time.monotonic() < end, f"the coordinator did not come up:\n{self.log}"
            time.sleep(0.02)

    def answers(self) -> bool:
        try:
            return all(send(port, "GET", "/healthz", token="x").status for port in (self.rest, self.agents))
        except OSError:
            return False

    def end(self, signal_number: int = signal.SIGTERM) -> int:
        """Send a signal and wait; gives the exit status."""
        assert self.process is not None
        if self.process.poll() is None:
            os.kill(self.process.pid, signal_number)
        return self.process.wait(PATIENCE_S)

    def ask(self, method: str, target: str, body: Any = None, **more: Any) -> Answer:
        """REST, with the right token unless another (or None) is given."""
        return send(self.rest, method, target, body=body, **{"token": self.token, **more})

    def ask_as_agent(self, method: str, target: str, body: Any = None, **more: Any) -> Answer:
        return send(self.agents, method, target, body=body, **{"token": self.token, **more})

    def events(self, *, last: str | None = None, query: str = "") -> "Stream":
        return Stream(self, last, query)


class Stream:
    """One SSE connection to /v1/events: (event, id, data) as they come."""

    def __init__(self, coordinator: Coordinator, last: str | None, query: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", coordinator.rest, timeout=PATIENCE_S)
        headers = {"authorization": f"Bearer {coordinator.token}"}
        if last is not None:
            headers["last-event-id"] = last
        self._connection.request("GET", f"/v1/events{query}", headers=headers)
        self._response = self._connection.getresponse()
        self.status = self._response.status
        self.kind = (self._response.getheader("content-type") or "").partition(";")[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def next(self) -> tuple[str, str, Any]:
        """Raises EOFError when the stream has ended. Comments keep a silent one alive: patience ends it."""
        fields: dict[str, str] = {}
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            line = self._response.readline()
            if not line:
                raise EOFError
            text = line.decode().rstrip("\n")
            if not text and fields:
                return fields["event"], fields["id"], json.loads(fields["data"])
            name, _, value = text.partition(": ")
            if name:
                fields[name] = value
        raise AssertionError("the stream told of nothing")

    def take(self, count: int) -> list[tuple[str, str, Any]]:
        return [self.next() for _ in range(count)]


def sparkd(one: Coordinator, *words: str) -> "subprocess.CompletedProcess[str]":
    """The command line, as a person beside this coordinator has it."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("SPARKD_", "XDG_"))}
    env |= {
        "HOME": str(one.folder),
        "SPARKD_COORDINATOR": f"http://127.0.0.1:{one.rest}",
        "SPARKD_TOKEN_FILE": str(one.token_file),
    }
    return subprocess.run(
        [sys.executable, "-m", "sparkd", *words],
        env=env, cwd=one.folder, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@contextmanager
def coordinator(folder: Path, nodes: Iterable[str] = (), **limits: float) -> Iterator[Coordinator]:
    """Started, and ended whatever happens. Nodes are enrolled by one word that is both id and name."""
    one = Coordinator(folder, {node: node for node in nodes}, limits)
    try:
        one.start()
        yield one
    finally:
        if one.process is not None:
            one.end(signal.SIGKILL)
