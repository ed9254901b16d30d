"""A conversation with `onnode` on a node: over SSH, with sudo if need be, or on this machine.

The one place where text for a remote shell is made is `remote_command`; its words are constants and a random
mark. Everything else travels as JSON on the program's standard input. A sudo password is written only in
answer to sudo's own prompt, so that it can reach nothing but sudo.
"""

import json
import os
import secrets
import select
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import IO, Any, Final, Protocol, Self

import paramiko

from sparkd.enrol import onnode
from sparkd.enrol.ssh import Entered
from sparkd.errors import EnrolmentFailed, LoginFailed
from sparkd.records.defaults import DEFAULTS

NODE_PYTHON: Final = "/usr/bin/python3"
"""The system's own: a login shell's `python3` may be conda's, of another version tomorrow."""
_BOOT: Final = "import sys;i=sys.stdin.buffer;print(*sys.argv[1:],flush=True);exec(i.read(int(i.readline())))"
"""Without quotes and backslashes, which shells take differently."""
_READY: Final = "ready"
SUDO_TRIES: Final = 3
_CHUNK: Final = 32 * 1024


class Pipe(Protocol):
    """A program's standard input, and its output and complaints as one stream."""

    def send(self, data: bytes) -> None:
        """Raises OSError when nobody reads any more."""

    def receive(self, timeout_s: float) -> bytes:
        """Nothing at the end. Raises TimeoutError."""

    def close(self) -> None: ...


class Conversation:
    """Questions and answers, one at a time. `who`: a word for the node, for errors."""

    def __init__(self, who: str, pipe: Pipe, mark: str) -> None:
        self._who = who
        self._pipe = pipe
        self._mark = f"{mark} ".encode()
        self._buffer = b""

    @classmethod
    def begin(
        cls, who: str, pipe: Pipe, mark: str, password: Callable[[int], str | None] | None = None
    ) -> Self:
        """Wait until Python runs, then send it the script. `password`: asked when sudo asks, with the number
        of the try, from 0. Raises LoginFailed when sudo does not let us, EnrolmentFailed when there is no
        Python.
        """
        self = cls(who, pipe, mark)
        program = onnode.script()
        try:
            self._wait_ready(password)
            pipe.send(f"{len(program)}\n".encode() + program)
        except OSError as error:
            raise EnrolmentFailed(f"{who}: the connection broke at the login: {error}") from error
        return self

    def ask(
        self, verb: str, blob: bytes = b"", timeout_s: float = DEFAULTS.enrol_step_s, **args: Any
    ) -> dict[str, Any]:
        """Raises EnrolmentFailed when the node refuses, breaks off, or is silent for `timeout_s`."""
        question = {"verb": verb, "args": args, "bytes": len(blob)}
        try:
            self._pipe.send(json.dumps(question).encode() + b"\n" + blob)
            answer = json.loads(self._answer(timeout_s))
        except TimeoutError:
            raise EnrolmentFailed(f"{self._who}: no answer to `{verb}` within {timeout_s:g} s") from None
        except OSError as error:
            raise EnrolmentFailed(f"{self._who}: the connection broke during `{verb}`: {error}") from error
        if "error" in answer:
            raise EnrolmentFailed(f"{self._who}: {answer['error']}")
        found: dict[str, Any] = answer["ok"]
        return found

    def close(self) -> None:
        self._pipe.close()

    def _answer(self, timeout_s: float) -> bytes:
        end = time.monotonic() + timeout_s
        while True:
            line, found, rest = self._buffer.partition(b"\n")
            if found:
                self._buffer = rest
                if line.startswith(self._mark):
                    return line.removeprefix(self._mark)
                continue
            more = self._pipe.receive(max(0.0, end - time.monotonic()))
            if not more:
                raise ConnectionResetError(f"the node's program ended: {self._said()}")
            self._keep(more)

    def _wait_ready(self, password: Callable[[int], str | None] | None) -> None:
        ready, prompt = self._mark + b"ready\n", self._mark + b"password:"
        tries = 0
        end = time.monotonic() + DEFAULTS.ssh_login_s
        while ready not in self._buffer:
            if prompt in self._buffer:
                before, _, self._buffer = self._buffer.partition(prompt)
                given = password(tries) if password and tries < SUDO_TRIES else None
                if given is None:
                    self.close()
                    why = "the password was wrong" if tries else "a password is needed, and there is none"
                    raise LoginFailed(f"{self._who}: sudo does not let us become root: {why}{_tail(before)}")
                tries += 1
                self._pipe.send(given.encode() + b"\n")
                # A person may have taken a while to type it.
                end = time.monotonic() + DEFAULTS.ssh_login_s
                continue
            try:
                more = self._pipe.receive(max(0.0, end - time.monotonic()))
            except TimeoutError:
                self.close()
                raise EnrolmentFailed(f"{self._who}: Python does not start{_tail(self._buffer)}") from None
            if not more:
                self.close()
                raise EnrolmentFailed(f"{self._who}: {NODE_PYTHON} cannot be run{_tail(self._buffer)}")
            self._keep(more)
        _, _, self._buffer = self._buffer.partition(ready)

    def _keep(self, more: bytes) -> None:
        self._buffer += more
        if len(self._buffer) > DEFAULTS.body_bytes:
            raise ConnectionResetError("it talks without end")

    def _said(self) -> str:
        return self._buffer[-500:].decode(errors="replace").strip() or "without a word"


def remote_command(mark: str, *, sudo: bool) -> str:
    """What the node's shell is given. It is quoted here and nowhere else."""
    become = ["sudo", "-S", "-p", f"{mark} password:", "--"] if sudo else []
    return shlex.join([*become, NODE_PYTHON, "-I", "-c", _BOOT, mark, _READY])


def new_mark() -> str:
    """What tells our lines from a login message. No secret."""
    return f"sparkd-{secrets.token_hex(8)}"


def converse_over_ssh(
    entered: Entered, *, sudo: bool, password: Callable[[int], str | None] | None = None
) -> Conversation:
    """Raises as `Conversation.begin`."""
    mark = new_mark()
    who = entered.route.name
    try:
        channel = entered.transport.open_session(timeout=DEFAULTS.ssh_connect_s)
        channel.set_combine_stderr(True)
        channel.exec_command(remote_command(mark, sudo=sudo))
    except (OSError, EOFError, paramiko.SSHException) as error:
        raise EnrolmentFailed(f"{who}: it runs no program for us: {error}") from error
    return Conversation.begin(who, _ChannelPipe(channel), mark, password)


def converse_here(who: str, argv: Sequence[str] = (sys.executable,)) -> Conversation:
    """With this machine, as the user that we are: `argv` is a Python."""
    mark = new_mark()
    process = subprocess.Popen(
        [*argv, "-I", "-c", _BOOT, mark, _READY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdin is not None  # noqa: S101  both were asked for
    assert process.stdout is not None  # noqa: S101
    return Conversation.begin(who, _ProcessPipe(process, process.stdin, process.stdout), mark)


class _ChannelPipe:
    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel

    def send(self, data: bytes) -> None:
        self._channel.settimeout(DEFAULTS.enrol_step_s)
        self._channel.sendall(data)

    def receive(self, timeout_s: float) -> bytes:
        self._channel.settimeout(timeout_s)
        return self._channel.recv(_CHUNK)

    def close(self) -> None:
        self._channel.close()


class _ProcessPipe:
    def __init__(self, process: "subprocess.Popen[bytes]", stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self._process = process
        self._stdin = stdin
        self._stdout = stdout

    def send(self, data: bytes) -> None:
        self._stdin.write(data)
        self._stdin.flush()

    def receive(self, timeout_s: float) -> bytes:
        descriptor = self._stdout.fileno()
        if not select.select([descriptor], [], [], timeout_s)[0]:
            raise TimeoutError
        return os.read(descriptor, _CHUNK)

    def close(self) -> None:
        self._stdin.close()
        self._stdout.close()
        self._process.wait(DEFAULTS.enrol_step_s)


def _tail(said: bytes) -> str:
    text = said[-500:].decode(errors="replace").strip()
    return f"; it said: {text}" if text else ""
