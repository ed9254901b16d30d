"""Server-sent events, as the WHATWG standard defines them; the reading half."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Message:
    event: str
    data: bytes
    id: str | None


def read_messages(lines: Iterable[bytes]) -> Iterator[Message]:
    """Messages of a stream of lines without their ends. An unfinished last message is dropped."""
    event, ident = "message", None
    data: list[bytes] = []
    for line in lines:
        if not line:
            if data:
                yield Message(event, b"\n".join(data), ident)
            event, data, ident = "message", [], None
            continue
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"event":
            event = value.decode()
        elif name == b"data":
            data.append(value)
        elif name == b"id":
            ident = value.decode()
