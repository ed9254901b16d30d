"""What strangers can make a coordinator do: little, for a short time, while good clients are still served."""

import itertools
import os
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.bed.agent_process import until
from tests.bed.coordinator import PATIENCE_S, Coordinator
from tests.bed.secure import SecureCoordinator, client_context, make_identity, send_securely

MIB = 1 << 20
ROOM = 16 * MIB
GOOD_S = 2.0
"""200 ms on a machine of its own; ten times as much for one that runs other tests besides."""
HALF_OPEN = 500


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[SecureCoordinator]:
    with started(tmp_path) as one:
        yield one


@contextmanager
def started(folder: Path, **limits: float) -> Iterator[SecureCoordinator]:
    one = SecureCoordinator(folder, {"a": "spark-a"}, limits)
    one.start()
    try:
        yield one
    finally:
        one.end()


def rss(coordinator: Coordinator) -> int:
    assert coordinator.process is not None
    pages = int(Path(f"/proc/{coordinator.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def connect(port: int, stack: ExitStack) -> socket.socket:
    return stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE_S))


def read_all(connection: socket.socket) -> bytes:
    received = b""
    with suppress(ConnectionResetError):
        while data := connection.recv(65536):
            received += data
    return received


def closed(connections: list[socket.socket]) -> int:
    """How many the other end has closed, or reset."""
    ready, _, _ = select.select(connections, [], [], 0)
    count = 0
    for connection in ready:
        with suppress(BlockingIOError):
            try:
                count += not connection.recv(65536, socket.MSG_DONTWAIT)
            except ConnectionResetError:
                count += 1
    return count


def client_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        client_context(None).wrap_bio(incoming, outgoing).do_handshake()
    return outgoing.read()


# Size.


def test_a_body_of_a_gigabyte_that_is_announced_is_refused_at_once(coordinator: SecureCoordinator) -> None:
    with ExitStack() as stack:
        connection = connect(coordinator.rest, stack)
        head = f"PUT /v1/deployments/x HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {coordinator.token}\r\n"
        connection.sendall(head.encode() + b"content-length: 1073741824\r\n\r\n")
        assert read_all(connection).startswith(b"HTTP/1.1 413")


def test_a_body_of_a_gigabyte_that_is_streamed_is_refused_early(coordinator: SecureCoordinator) -> None:
    before = rss(coordinator)
    chunk = b"100000\r\n" + bytes(MIB) + b"\r\n"
    with ExitStack() as stack:
        connection = connect(coordinator.rest, stack)
        head = f"PUT /v1/deployments/x HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {coordinator.token}\r\n"
        connection.sendall(head.encode() + b"transfer-encoding: chunked\r\n\r\n")
        sent = 0
        with suppress(ConnectionError):
            for _ in range(1024):
                connection.sendall(chunk)
                sent += 1
                if select.select([connection], [], [], 0)[0]:
                    break
        assert read_all(connection).startswith(b"HTTP/1.1 413")
    assert 8 <= sent < 64, "MiB"
    assert rss(coordinator) - before < ROOM


def test_a_body_without_a_valid_token_is_not_even_read(coordinator: SecureCoordinator) -> None:
    with ExitStack() as stack:
        connection = connect(coordinator.rest, stack)
        connection.sendall(b"PUT /v1/deployments/x HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n")
        assert read_all(connection).startswith(b"HTTP/1.1 401")


@pytest.mark.parametrize("length", ["-1", "1e3", "0x10", "1, 1000000000", ""])
def test_a_length_that_is_none(coordinator: SecureCoordinator, length: str) -> None:
    with ExitStack() as stack:
        connection = connect(coordinator.rest, stack)
        head = f"PUT /v1/deployments/x HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {coordinator.token}\r\n"
        connection.sendall(f"{head}content-length: {length}\r\n\r\n".encode())
        assert read_all(connection)[:10] == b"HTTP/1.1 4"


def test_a_head_of_a_megabyte(coordinator: SecureCoordinator, tmp_path: Path) -> None:
    before = rss(coordinator)
    head = b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-long: " + b"a" * MIB + b"\r\n\r\n"
    context = client_context(make_identity(tmp_path / "a", coordinator.authority, "a"))
    with ExitStack() as stack:
        plain = connect(coordinator.rest, stack)
        secure = stack.enter_context(context.wrap_socket(connect(coordinator.agents, stack)))
        for connection in (plain, secure):
            with suppress(ConnectionError, ssl.SSLError):
                connection.sendall(head)
            answer = read_all(connection)
            assert answer.startswith(b"HTTP/1.1 431"), answer[:80]
            assert b"application/problem+json" in answer
    assert rss(coordinator) - before < ROOM


def test_what_is_no_http_is_told_so(coordinator: SecureCoordinator) -> None:
    with ExitStack() as stack:
        connection = connect(coordinator.rest, stack)
        connection.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        answer = read_all(connection)
        assert answer.startswith(b"HTTP/1.1 400")
        assert b"urn:sparkd:usage" in answer


def good_request(coordinator: Coordinator) -> bytes:
    head = f"GET /v1/status HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {coordinator.token}\r\n\r\n"
    return head.encode()


@pytest.mark.parametrize("path", ["/healthz", "/v1/status"])
def test_who_has_shown_nothing_keeps_no_connection(coordinator: SecureCoordinator, path: str) -> None:
    """Else a stranger could hold every one that there is, by asking how we are."""
    with ExitStack() as stack:
        connection = connect(coordinator.rest, stack)
        connection.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        assert b"connection: close" in read_all(connection)


# Time.


def drip(connection: socket.socket, data: bytes, step_s: float) -> float:
    """Send a byte at a time until the other end hangs up; gives the seconds that this took."""
    begun = time.monotonic()
    for byte in itertools.cycle(data):
        try:
            connection.sendall(bytes([byte]))
        except OSError:
            break
        if select.select([connection], [], [], step_s)[0]:
            break
        assert time.monotonic() - begun < PATIENCE_S, "a byte at a time keeps a connection for ever"
    return time.monotonic() - begun


@pytest.mark.parametrize("part", ["head", "body", "handshake"])
def test_a_byte_at_a_time_ends_at_the_deadline(tmp_path: Path, part: str) -> None:
    with started(tmp_path, receive_s=1.0) as coordinator, ExitStack() as stack:
        connection = connect(coordinator.agents if part == "handshake" else coordinator.rest, stack)
        begin, then = b"", b"x"
        if part == "body":
            begin = (
                f"PUT /v1/deployments/x HTTP/1.1\r\nauthorization: Bearer {coordinator.token}\r\n".encode()
            )
            begin += b"host: x\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n"
        elif part == "handshake":
            begin, then = client_hello()[:-40], b"\0"
            assert len(begin) > 100
        connection.sendall(begin)
        assert drip(connection, then, 0.1) >= 0.9
        assert read_all(connection) == b""


def test_a_connection_that_is_kept_between_requests_is_not_in_a_hurry(tmp_path: Path) -> None:
    with started(tmp_path, receive_s=0.5) as coordinator, ExitStack() as stack:
        connection = connect(coordinator.rest, stack)
        for _ in range(2):
            connection.sendall(good_request(coordinator))
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
            assert not select.select([connection], [], [], 1.5)[0], "three deadlines later it is still open"


# Number.


def silent(_: int) -> bytes:
    return b""


def half_a_head(_: int) -> bytes:
    return b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-"


def a_whole_client_hello(_: int) -> bytes:
    return client_hello()


@pytest.mark.parametrize(
    ("server", "say"),
    [
        ("rest", silent),
        ("rest", half_a_head),
        ("agents", silent),
        ("agents", a_whole_client_hello),
    ],
)
def test_half_open_connections_keep_nobody_out(
    coordinator: SecureCoordinator, tmp_path: Path, server: str, say: Callable[[int], bytes]
) -> None:
    context = client_context(make_identity(tmp_path / "a", coordinator.authority, "a"))

    def ask_well() -> float:
        begun = time.monotonic()
        assert coordinator.ask("GET", "/v1/status").status == 200
        target = "/agent/v1/document"
        assert send_securely(coordinator.agents, "GET", target, context=context).status == 400
        return time.monotonic() - begun

    ask_well()
    before = rss(coordinator)
    with ExitStack() as stack:
        port = coordinator.rest if server == "rest" else coordinator.agents
        strangers = []
        for number in range(HALF_OPEN):
            strangers.append(connect(port, stack))
            with suppress(ConnectionError):
                strangers[-1].sendall(say(number))
        assert ask_well() < GOOD_S
        assert rss(coordinator) - before < ROOM
        # All of one address: the oldest silent ones had to make room.
        until(lambda: closed(strangers) >= HALF_OPEN - 128, "the oldest to be closed")
        assert closed(strangers[-100:]) == 0, "the youngest still have their time"


def test_connections_in_use_are_bounded_too(tmp_path: Path) -> None:
    """Whoever has sent a request is not thrown out for a newcomer: the newcomer waits."""
    with started(tmp_path, connections_per_peer=20) as coordinator, ExitStack() as stack:
        kept = [connect(coordinator.rest, stack) for _ in range(20)]
        for connection in kept:
            connection.sendall(good_request(coordinator))
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        one_more = connect(coordinator.rest, stack)
        assert read_all(one_more) == b""
        assert closed(kept) == 0
        kept[0].close()
        until(coordinator.answers, "room for one")
