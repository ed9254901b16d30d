"""A coordinator that answers what a test tells it to, over real HTTP on a loopback port."""

import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec


@dataclass(frozen=True)
class Asked:
    method: str
    target: str
    headers: dict[str, str]
    body: Any


@dataclass(frozen=True)
class Answer:
    body: Any
    status: int = 200
    kind: str = "application/json"
    breaks_off: bool = False
    """The connection ends before the announced length."""


@dataclass
class FakeCoordinator:
    """The answers of one path are given in turn; the last one for ever."""

    token: str = "secret"
    asked: list[Asked] = field(default_factory=list)
    answers: dict[tuple[str, str], list[Answer]] = field(default_factory=dict)

    def on(self, method: str, path: str, *answers: Any) -> None:
        made = [one if isinstance(one, Answer) else Answer(one) for one in answers]
        self.answers[method, path] = made

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def handle_one(self) -> None:
                fake._answer(self)

            do_GET = do_PUT = do_POST = do_DELETE = handle_one  # noqa: N815  http.server's names

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        length = int(request.headers.get("content-length") or 0)
        content = request.rfile.read(length)
        headers = {key.lower(): value for key, value in request.headers.items()}
        body = msgspec.json.decode(content) if content else None
        self.asked.append(Asked(request.command, request.path, headers, body))
        answer = self._choose(request.command, urlsplit(request.path).path, headers)
        raw = answer.body if isinstance(answer.body, bytes) else msgspec.json.encode(answer.body)
        request.send_response(answer.status)
        request.send_header("content-type", answer.kind)
        request.send_header("content-length", str(len(raw) + answer.breaks_off))
        request.end_headers()
        request.wfile.write(raw)

    def _choose(self, method: str, path: str, headers: dict[str, str]) -> Answer:
        if headers.get("authorization") != f"Bearer {self.token}":
            return problem("unauthorized", 401, "no token, or another one than mine")
        known = self.answers.get((method, path))
        if known is None:
            return problem("not-found", 404, f"no route {method} {path}")
        return known.pop(0) if len(known) > 1 else known[0]


def problem(code: str, status: int, detail: str, **more: Any) -> Answer:
    body = {"type": f"urn:sparkd:{code}", "title": code, "status": status, "detail": detail, "code": code}
    return Answer(body | more, status, "application/problem+json")
