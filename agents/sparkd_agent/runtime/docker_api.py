"""The API of a Docker engine over its unix socket: a question and its answer, and the streams of a container.

All calls block, for milliseconds as a rule; they belong into a thread. None is made to end a rank: see
`kill.py`. Docker's own SDK costs 48 MiB where an agent has 36; this is h11, which is loaded anyway.
"""

import json
import socket
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

import h11

from sparkd.errors import DockerRefused, DockerUnreachable
from sparkd.records.defaults import DEFAULTS
from sparkd_agent.config import DOCKER_SOCKET

_READ_BYTES: Final = 64 * 1024
_STDOUT: Final = 1
_FRAME_HEAD_BYTES: Final = 8
"""`STREAM 0 0 0 SIZE`, the size in four bytes, big end first: a container without a terminal."""


class DockerApi:
    """A connection for each question: an engine is restarted more often than an agent."""

    def __init__(self, path: str = DOCKER_SOCKET, patience_s: float = DEFAULTS.docker_s) -> None:
        self.path = path
        self._patience_s = patience_s

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        patience_s: float | None = None,
        max_body: int = DEFAULTS.body_bytes,
    ) -> Any:
        """The decoded JSON of the answer; None for an answer without a body, bytes for one that is no JSON.

        Raises DockerUnreachable when the engine was not asked or did not answer in time, DockerRefused with
        the engine's own words for every status from 400 on.
        """
        deadline = time.monotonic() + (self._patience_s if patience_s is None else patience_s)
        target = f"{path}?{urlencode(query)}" if query else path
        connection = self._connect(deadline)
        with connection.socket:
            try:
                status, headers, answer = connection.exchange(method, target, _encoded(body), max_body)
            except (OSError, h11.ProtocolError) as error:
                raise self._silent(method, path, error) from error
        if status >= 400:
            raise DockerRefused(_message(answer) or f"status {status}", status)
        if not answer:
            return None
        return json.loads(answer) if "json" in headers.get("content-type", "") else answer

    def attach(self, container: str) -> "Attached":
        """The streams of a container that was made with an open stdin. Raises as `ask`."""
        deadline = time.monotonic() + self._patience_s
        path = f"/containers/{container}/attach?stream=1&stdin=1&stdout=1&stderr=1"
        connection = self._connect(deadline)
        try:
            status, _, rest = connection.exchange("POST", path, b"", _READ_BYTES, upgrade=True)
        except (OSError, h11.ProtocolError) as error:
            connection.socket.close()
            raise self._silent("POST", path, error) from error
        if status != 101:
            connection.socket.close()
            raise DockerRefused(_message(rest) or f"status {status} for an attach", status)
        return Attached(connection.socket, rest)

    def _connect(self, deadline: float) -> "_Connection":
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        one.settimeout(self._patience_s)
        try:
            one.connect(self.path)
        except OSError as error:
            one.close()
            raise DockerUnreachable(f"{self.path}: {error.strerror or error}") from error
        return _Connection(one, deadline)

    def _silent(self, method: str, path: str, error: Exception) -> DockerUnreachable:
        why = "no answer in time" if isinstance(error, TimeoutError) else str(error) or "it broke off"
        return DockerUnreachable(f"{self.path}: {method} {path.partition('?')[0]}: {why}")


class Attached:
    """Standard input, output and error of a container, from before it is started."""

    def __init__(self, connection: socket.socket, received: bytes) -> None:
        self._socket = connection
        self._received = bytearray(received)
        self.stderr = bytearray()

    def send(self, data: bytes, patience_s: float) -> None:
        """All of its standard input. Raises DockerUnreachable."""
        self._socket.settimeout(patience_s)
        try:
            self._socket.sendall(data)
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise DockerUnreachable(f"its standard input was not taken: {error}") from error

    def first_word(self, patience_s: float) -> bytes | None:
        """The first thing it writes to stdout; empty if it ended without, None if it says nothing in time."""
        deadline = time.monotonic() + patience_s
        while (frame := self._frame(deadline)) is not None:
            stream, data = frame
            if stream == _STDOUT:
                return data
            if not data:
                return b""
            self.stderr += data
        return None

    def all_of_it(self, patience_s: float) -> bytes | None:
        """What it writes to stdout until it ends; None if it does not end in time."""
        deadline = time.monotonic() + patience_s
        said = b""
        while (frame := self._frame(deadline)) is not None:
            stream, data = frame
            if not data:
                return said
            if stream == _STDOUT:
                said += data
            else:
                self.stderr += data
        return None

    def close(self) -> None:
        self._socket.close()

    def _frame(self, deadline: float) -> tuple[int, bytes] | None:
        """(stream, data); without data at the end, None when the time is over."""
        size = _FRAME_HEAD_BYTES
        while True:
            if len(self._received) >= _FRAME_HEAD_BYTES:
                size = _FRAME_HEAD_BYTES + int.from_bytes(self._received[4:8])
            if len(self._received) >= size > _FRAME_HEAD_BYTES:
                stream, data = self._received[0], bytes(self._received[_FRAME_HEAD_BYTES:size])
                del self._received[:size]
                return stream, data
            try:
                self._socket.settimeout(max(0.001, deadline - time.monotonic()))
                more = self._socket.recv(_READ_BYTES)
            except TimeoutError:
                return None
            except OSError:
                more = b""
            if not more:
                return 0, b""
            self._received += more


class _Connection:
    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self.socket = connection
        self._deadline = deadline
        self._state = h11.Connection(h11.CLIENT)

    def exchange(
        self, method: str, target: str, body: bytes, max_body: int, *, upgrade: bool = False
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body; of an upgrade that was granted, what came after the answer.

        Raises OSError (TimeoutError when the deadline is over) or h11.ProtocolError.
        """
        fields = [("host", "docker"), ("content-length", str(len(body)))]
        fields += [("connection", "upgrade"), ("upgrade", "tcp")] if upgrade else [("connection", "close")]
        if body:
            fields.append(("content-type", "application/json"))
        request = h11.Request(method=method, target=target, headers=fields)
        data = self._state.send(request) or b""
        if body:
            data += self._state.send(h11.Data(data=body)) or b""
        data += self._state.send(h11.EndOfMessage()) or b""
        self._settle()
        self.socket.sendall(data)
        return self._answer(max_body)

    def _answer(self, max_body: int) -> tuple[int, dict[str, str], bytes]:
        status, headers, body = 0, dict[str, str](), bytearray()
        while True:
            event = self._state.next_event()
            if event is h11.NEED_DATA:
                self._settle()
                self._state.receive_data(self.socket.recv(_READ_BYTES))
            elif isinstance(event, h11.InformationalResponse) and event.status_code == 101:
                return 101, {}, self._state.trailing_data[0]
            elif isinstance(event, h11.Response):
                status = event.status_code
                headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > max_body:
                    raise OSError(f"an answer of more than {max_body} bytes")
            elif isinstance(event, h11.EndOfMessage):
                return status, headers, bytes(body)
            elif isinstance(event, h11.ConnectionClosed):
                raise OSError("it closed the connection before answering")

    def _settle(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.socket.settimeout(left)


def _encoded(body: Mapping[str, Any] | None) -> bytes:
    return b"" if body is None else json.dumps(body).encode()


def _message(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["message"])
    except (ValueError, LookupError, TypeError):
        return answer.decode(errors="replace").strip()
