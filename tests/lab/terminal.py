"""A person at a terminal of a node: a program there with a real tty, read and answered."""

import os
import select
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tests.lab.node import Node
from tests.lab.room import PATIENCE_S

_WITH_TTY: Final = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)"


@dataclass(frozen=True)
class Said:
    code: int
    text: str
    """All that stood on the screen."""


def at_terminal(
    node: Node, *argv: str, answers: Sequence[tuple[str, str]] = (), timeout_s: float = PATIENCE_S
) -> Said:
    """Run a program; each answer is typed once its question stands on the screen, in their order."""
    process = subprocess.Popen(
        node.command("/usr/bin/python3", "-c", _WITH_TTY, *argv),
        env={
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/root",
            "LANG": "C.UTF-8",
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    todo, screen, seen = list(answers), b"", 0
    end = time.monotonic() + timeout_s
    try:
        while True:
            if todo and todo[0][0].encode() in screen[seen:]:
                seen = screen.index(todo[0][0].encode(), seen) + len(todo[0][0])
                process.stdin.write(todo.pop(0)[1].encode() + b"\n")
                process.stdin.flush()
            rest = end - time.monotonic()
            assert rest > 0, f"still there after {timeout_s:g} s:\n{screen.decode(errors='replace')}"
            if select.select([process.stdout], [], [], rest)[0]:
                more = os.read(process.stdout.fileno(), 65536)
                if not more:
                    break
                screen += more
        assert not todo, f"nobody asked {todo[0][0]!r}:\n{screen.decode(errors='replace')}"
    finally:
        process.stdin.close()
        process.stdout.close()
        if process.poll() is None and time.monotonic() > end:
            process.kill()
        code = process.wait(PATIENCE_S)
    return Said(code, screen.decode(errors="replace").replace("\r\n", "\n"))
