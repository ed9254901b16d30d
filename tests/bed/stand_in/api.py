"""Rank 0's API server: just enough HTTP, in threads, over requests that EngineCore answers."""

import json
import os
import queue
import signal
import socket
import threading
import time
from typing import NoReturn

from stand_in.engine import run_engine
from stand_in.place import Lines, Message, Place, fork, refuse_to_start, write

DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
WORDS = ("what", "stays", "up", "is", "worth", "more", "than", "what", "comes", "up")
REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class Api:
    def __init__(self, place: Place) -> None:
        self.place = place
        self.names = place.flags.get("served-model-name") or [place.model]
        self.key = place.flag("api-key", "") or os.environ.get("VLLM_API_KEY", "")
        self.counters = {
            "prompt": 0,
            "generated": 0,
            "iterations": 0,
            "tokens": 0,
            "running": 0,
            "kv": 0.0,
            "success": 0,
        }
        self.requests: dict[str, queue.Queue[tuple[str | None, bool]]] = {}
        self.children: list[int] = []
        self.dead = False
        self.lock = threading.Lock()

    def bind(self) -> None:
        """Early, and without listening: connections are refused until the engine is up."""
        host, port = self.place.flag("host", "0.0.0.0"), int(self.place.flag("port", "8000"))
        self.server = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self.server.bind((host, port))
        except OSError as error:
            refuse_to_start(self.place, f"OSError: [Errno {error.errno}] {error.strerror}")

    def start_engine(self) -> None:
        here, there = socket.socketpair()

        def become_engine() -> None:
            here.close()
            self.server.close()
            self.place.end_cleanly_on_sigterm()
            run_engine(self.place, Lines(there))

        self.children.append(fork(become_engine))
        there.close()
        self.engine = Lines(here)

    def wait_for_engine(self) -> None:
        while True:
            try:
                message = self.engine.receive()
            except (EOFError, OSError):
                self.kill_children()
                text = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
                refuse_to_start(self.place, text)
            self.place.segment_paths += message.get("segments", [])
            if "ready" in message:
                self.children.append(message["ready"])
            if "phase" in message:
                self.place.enter(message["phase"])
            if "up" in message:
                return

    def serve(self) -> None:
        host, port = self.place.flag("host", "0.0.0.0"), self.place.flag("port", "8000")
        self.place.log("Supported tasks: ['generate']", "entry.py:136")
        self.place.log(f"Starting vLLM server on http://{host}:{port}", "entry.py:140")
        self.place.log("Available routes are:\nRoute: /health, Methods: GET", "launcher.py:186")
        self.server.listen(128)
        write(
            2,
            f"INFO:     Started server process [{os.getpid()}]\nINFO:     Waiting for application startup.\n",
        )
        write(2, "INFO:     Application startup complete.\n")
        threading.Thread(target=self.accept, daemon=True).start()
        self.place.enter("serving")
        self.read_engine()

    def accept(self) -> None:
        while True:
            connection, peer = self.server.accept()
            threading.Thread(target=self.talk, args=(connection, peer), daemon=True).start()

    def read_engine(self) -> None:
        """Until the engine dies; then: errors to all, /health 503, and exit code 0."""
        reason = "EOF"
        while True:
            try:
                message = self.engine.receive()
            except (EOFError, OSError):
                break
            if "dead" in message:
                reason = message["dead"]
                break
            self.count(message)
            for id_, token, done in message["outputs"]:
                if id_ in self.requests:
                    self.requests[id_].put((token, done))
        self.dead = True
        self.place.log(
            "AsyncLLM output_handler failed.\nTraceback (most recent call last):\n"
            f"vllm.v1.engine.exceptions.EngineDeadError: {DEAD} ({reason[:20]})",
            "async_llm.py:906",
            "ERROR",
        )
        for waiting in list(self.requests.values()):
            waiting.put((None, True))
        time.sleep(self.place.seconds("EXIT_DELAY_S", 2) / 2)
        self.shut_down()

    def count(self, message: Message) -> None:
        with self.lock:
            count, generated = self.counters, len(message["outputs"])
            count["prompt"] += message["prompt"]
            count["generated"] += generated
            count["iterations"] += 1 if generated else 0
            count["tokens"] += generated + message["prompt"]
            count["running"], count["kv"] = message["running"], message["kv"]
            count["success"] += sum(1 for _, _, done in message["outputs"] if done)

    def shut_down(self) -> NoReturn:
        self.place.log("[shutdown] API server: shutdown triggered", "launcher.py:254")
        self.kill_children()
        write(2, "INFO:     Shutting down\nINFO:     Application shutdown complete.\n")
        os._exit(0)

    def kill_children(self) -> None:
        for sig, wait_s in ((signal.SIGTERM, 0.2), (signal.SIGKILL, 0)):
            for pid in self.children:
                try:
                    os.kill(pid, sig)
                except ProcessLookupError:
                    continue
            time.sleep(wait_s)
        self.place.remove_segments()

    # HTTP

    def talk(self, connection: socket.socket, peer: tuple[str, int]) -> None:
        data = b""
        with connection:
            while True:
                try:
                    while b"\r\n\r\n" not in data:
                        more = connection.recv(65536)
                        if not more:
                            return
                        data += more
                    head, _, data = data.partition(b"\r\n\r\n")
                    lines = head.decode("latin-1").split("\r\n")
                    method, path, _ = lines[0].split(" ", 2)
                    headers = {
                        k.strip().lower(): v.strip()
                        for k, _, v in (line.partition(":") for line in lines[1:])
                    }
                    length = int(headers.get("content-length", "0"))
                    while len(data) < length:
                        data += connection.recv(65536)
                    body, data = data[:length], data[length:]
                    status = self.answer(connection, method, path.partition("?")[0], headers, body)
                    write(
                        1,
                        f'INFO:     {peer[0]}:{peer[1]} - "{method} {path} HTTP/1.1" {status} {REASONS[status]}\n',
                    )
                except OSError:
                    return

    def answer(
        self, connection: socket.socket, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> int:
        if path.startswith("/v1") and self.key and headers.get("authorization") != f"Bearer {self.key}":
            return respond(connection, 401, {"error": "Unauthorized"})
        if path in ("/health", "/ping"):
            return respond(connection, 503 if self.dead else 200, b"")
        if path == "/metrics":
            return respond(
                connection, 200, self.metrics().encode(), "text/plain; version=1.0.0; charset=utf-8"
            )
        if path == "/version":
            return respond(connection, 200, {"version": "0.32.0"})
        if path == "/v1/models":
            models = [
                {"id": name, "object": "model", "root": self.place.model, "max_model_len": 512}
                for name in self.names
            ]
            return respond(connection, 200, {"object": "list", "data": models})
        if method == "POST" and path in ("/v1/chat/completions", "/v1/completions"):
            return self.complete(connection, path, body)
        return respond(connection, 404, {"detail": "Not Found"})

    def complete(self, connection: socket.socket, path: str, body: bytes) -> int:
        asked = json.loads(body)
        if asked.get("model", self.names[0]) not in self.names:
            return respond(connection, 404, error(f"The model `{asked['model']}` does not exist.", 404))
        if self.dead:
            return respond(connection, 500, error(DEAD, 500))
        chat = path == "/v1/chat/completions"
        question = str(asked["messages"][-1]["content"] if chat else asked.get("prompt", ""))
        limit = int(asked.get("max_completion_tokens") or asked.get("max_tokens") or 16)
        every = self.tokens(question)
        tokens = every[:limit] if every else [""]
        id_ = ("chatcmpl-" if chat else "cmpl-") + os.urandom(8).hex()
        mine = self.requests[id_] = queue.Queue()
        finish = "length" if len(every) > limit else "stop"
        try:
            with self.lock:
                self.engine.send({"id": id_, "prompt": max(1, len(question) // 4), "tokens": tokens})
            if asked.get("stream"):
                return self.stream(connection, id_, chat, mine, finish)
            text = ""
            done = False
            while not done:
                token, done = wait_for(mine, connection)
                if token is None:
                    return respond(connection, 500, error(DEAD, 500))
                text += token
        finally:
            del self.requests[id_]
        choice: Message = {"index": 0, "finish_reason": finish}
        choice.update({"message": {"role": "assistant", "content": text}} if chat else {"text": text})
        usage = {"prompt_tokens": max(1, len(question) // 4), "completion_tokens": len(tokens)}
        kind = "chat.completion" if chat else "text_completion"
        return respond(
            connection,
            200,
            {
                "id": id_,
                "object": kind,
                "created": int(time.time()),
                "model": self.names[0],
                "choices": [choice],
                "usage": usage,
            },
        )

    def stream(
        self,
        connection: socket.socket,
        id_: str,
        chat: bool,
        mine: "queue.Queue[tuple[str | None, bool]]",
        finish: str,
    ) -> int:
        connection.sendall(
            b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        done = False
        while not done:
            token, done = wait_for(mine, connection)
            if token is None:
                event(connection, json.dumps(error(DEAD, 500)))
                break
            choice: Message = {"index": 0, "finish_reason": finish if done else None}
            choice.update({"delta": {"content": token}} if chat else {"text": token})
            kind = "chat.completion.chunk" if chat else "text_completion"
            event(
                connection,
                json.dumps({"id": id_, "object": kind, "model": self.names[0], "choices": [choice]}),
            )
        event(connection, "[DONE]")
        connection.sendall(b"0\r\n\r\n")
        return 200

    def tokens(self, question: str) -> list[str]:
        answer = self.place.setting("ANSWER", "\0")
        if answer != "\0":
            return [word if i == 0 else " " + word for i, word in enumerate(answer.split(" "))]
        if "12" in question and "7" in question:
            return ["84"]
        return [" " + WORDS[i % len(WORDS)] for i in range(512)]

    def metrics(self) -> str:
        """The counters of `facts/vllm.md` §3.2 that sparkd reads, between others, as vLLM prints them."""
        labels = f'engine="0",model_name="{self.names[0]}"'
        with self.lock:
            c = dict(self.counters)
        return (
            "# HELP python_info Python platform information\n# TYPE python_info gauge\n"
            f'python_info{{implementation="CPython",major="3"}} 1.0\n'
            f"vllm:num_requests_running{{{labels}}} {float(c['running'])}\n"
            f"vllm:num_requests_waiting{{{labels}}} 0.0\n"
            f'vllm:num_requests_waiting_by_reason{{{labels},reason="capacity"}} 0.0\n'
            f"vllm:kv_cache_usage_perc{{{labels}}} {c['kv']}\n"
            "# HELP vllm:prompt_tokens_total Number of prefill tokens processed.\n"
            "# TYPE vllm:prompt_tokens_total counter\n"
            f"vllm:prompt_tokens_total{{{labels}}} {float(c['prompt'])}\n"
            f"vllm:generation_tokens_total{{{labels}}} {float(c['generated'])}\n"
            f'vllm:request_success_total{{engine="0",finished_reason="length",model_name="{self.names[0]}"}} {float(c["success"])}\n'
            f'vllm:iteration_tokens_total_bucket{{engine="0",le="+Inf",model_name="{self.names[0]}"}} {float(c["iterations"])}\n'
            f"vllm:iteration_tokens_total_count{{{labels}}} {float(c['iterations'])}\n"
            f"vllm:iteration_tokens_total_sum{{{labels}}} {float(c['tokens'])}\n"
        )


def wait_for(
    mine: "queue.Queue[tuple[str | None, bool]]", connection: socket.socket
) -> tuple[str | None, bool]:
    """The next token; OSError when the client is gone meanwhile."""
    while True:
        try:
            return mine.get(timeout=1)
        except queue.Empty:
            connection.setblocking(False)
            try:
                if connection.recv(1, socket.MSG_PEEK) == b"":
                    raise ConnectionResetError
            except BlockingIOError:
                pass
            finally:
                connection.setblocking(True)


def respond(
    connection: socket.socket, status: int, body: bytes | Message, kind: str = "application/json"
) -> int:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status} {REASONS[status]}\r\nserver: uvicorn\r\ncontent-length: {len(data)}\r\n"
    head += f"content-type: {kind}\r\n\r\n" if data else "\r\n"
    connection.sendall(head.encode() + data)
    return status


def event(connection: socket.socket, text: str) -> None:
    data = f"data: {text}\n\n".encode()
    connection.sendall(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def error(text: str, code: int) -> Message:
    return {
        "error": {
            "message": text,
            "type": "InternalServerError" if code == 500 else "NotFoundError",
            "param": None,
            "code": code,
        }
    }
