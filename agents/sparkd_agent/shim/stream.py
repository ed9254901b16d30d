"""One of the rank's two outputs, as lines."""


class Stream:
    """Cuts one pipe into stamped lines: at newlines and carriage returns, and where a line is too long.

    A chunk is never larger than a line may be, so only a line that spans chunks can be too long.
    """

    def __init__(self, mark: str, line_bytes: int) -> None:
        self._mark = mark
        self._limit = line_bytes
        self._partial = b""
        self._cut = 0
        self._after_return = False

    def lines(self, data: bytes, mono: int, wall: int) -> bytes:
        """The complete lines so far, stamped with the moment this chunk was read."""
        if self._after_return and data.startswith(b"\n"):
            data = data[1:]
        self._after_return = data.endswith(b"\r")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        head, newline, rest = data.partition(b"\n")
        self._grow(head)
        if not newline:
            return b""
        stamp = f"{mono} {wall} {self._mark} ".encode()
        first = self._finish(stamp)
        body, newline, tail = rest.rpartition(b"\n")
        self._grow(tail)
        return first + (stamp + body.replace(b"\n", b"\n" + stamp) + b"\n" if newline else b"")

    def rest(self, mono: int, wall: int) -> bytes:
        """What is left when the pipe has ended in the middle of a line."""
        if not self._partial and not self._cut:
            return b""
        return self._finish(f"{mono} {wall} {self._mark} ".encode())

    def _grow(self, part: bytes) -> None:
        room = self._limit - len(self._partial)
        self._partial += part[:room]
        self._cut += max(0, len(part) - room)

    def _finish(self, stamp: bytes) -> bytes:
        marker = f" [sparkd: {self._cut} bytes of this line were cut]".encode() if self._cut else b""
        line = stamp + self._partial + marker + b"\n"
        self._partial, self._cut = b"", 0
        return line
