"""The agent's HTTP client against real sockets."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from sparkd.errors import AnswerBroken, NotAnswered, NotConnected
from sparkd.records.rank import Address
from sparkd_agent.http import Connection, request
from tests.bed.ports import free_port

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[Address]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield Address("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        server.close()


async def read_request(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = [line.split(":")[1] for line in head.lower().splitlines() if line.startswith("content-length:")]
    return head, await reader.readexactly(int(length[0]) if length else 0)


def answering(*answers: bytes) -> Handler:
    """Answers one request after the other on a connection, then closes it."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await read_request(reader)
            writer.write(answer)
            await writer.drain()

    return handle


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"


def test_request_and_answer_arrive_whole() -> None:
    heard: list[tuple[str, bytes]] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await read_request(reader))
        writer.write(b"HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n")

    async def run() -> None:
        async with serving(handle) as address:
            answer = await request(
                address, "POST", "/x?y=1", headers={"Authorization": "Bearer k"}, body=b"{}"
            )
            assert answer.status == 201
            assert answer.body == b"abc"
            (head, body) = heard[0]
            assert head.startswith("POST /x?y=1 HTTP/1.1\r\n")
            assert f"host: {address}\r\n" in head
            assert "authorization: Bearer k\r\n" in head
            assert body == b"{}"

    asyncio.run(run())


def test_a_connection_is_kept_and_made_anew() -> None:
    connections = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await answering(OK, OK)(reader, writer)

    async def run() -> None:
        async with serving(handle) as address, Connection(address) as connection:
            for _ in range(2):
                assert (await connection.request("GET", "/")).body == b"hi"
            assert connections == 1
            await asyncio.sleep(0.05)  # the server closes after its second answer; let the news arrive
            assert (await connection.request("GET", "/")).body == b"hi"
            assert connections == 2

    asyncio.run(run())


def test_an_answer_that_asks_to_close_is_obeyed() -> None:
    async def run() -> None:
        closing = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
        async with serving(answering(closing)) as address, Connection(address) as connection:
            assert (await connection.request("GET", "/")).status == 200
            assert (await connection.request("GET", "/")).status == 200

    asyncio.run(run())


def test_refused() -> None:
    async def run() -> None:
        with pytest.raises(NotConnected, match="cannot be reached"):
            await request(Address("127.0.0.1", free_port()), "GET", "/")

    asyncio.run(run())


def test_no_answer_in_time() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def run() -> None:
        async with serving(silent) as address, Connection(address) as connection:
            with pytest.raises(NotAnswered, match=r"did not answer GET / within 0\.1 s"):
                await connection.request("GET", "/", timeout_s=0.1)

    asyncio.run(run())


def test_the_time_limit_holds_over_a_trickling_answer() -> None:
    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        for _ in range(1000):
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)

    async def run() -> None:
        async with serving(trickle) as address:
            with pytest.raises(NotAnswered):
                await request(address, "GET", "/", timeout_s=0.2)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nhalf", "no valid HTTP"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "no valid HTTP"),
        (b"", "no valid HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n" + b"x" * 5000, "more than 1000 bytes"),
    ],
)
def test_broken_answers(answer: bytes, told: str) -> None:
    async def run() -> None:
        async with serving(answering(answer)) as address, Connection(address) as connection:
            with pytest.raises(AnswerBroken, match=told):
                await connection.request("GET", "/", max_body=1000)
            with pytest.raises(AnswerBroken):
                await connection.request("GET", "/", max_body=1000)

    asyncio.run(run())


def test_a_given_up_request_leaves_no_half_used_connection() -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, _ = await read_request(reader)
        if "GET /slow" in head:
            await asyncio.sleep(5)
        writer.write(OK)

    async def run() -> None:
        async with serving(slow) as address, Connection(address) as connection:
            task = asyncio.create_task(connection.request("GET", "/slow"))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await connection.request("GET", "/fast")).body == b"hi"

    asyncio.run(run())
