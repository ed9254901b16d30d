"""Waiting for a deployment, with patience for a coordinator that restarts meanwhile."""

import time
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from sparkd.cli.display import Display
from sparkd.clock import Clock, SystemClock
from sparkd.errors import CoordinatorStarting, TimedOut, Unavailable
from sparkd.records.defaults import DEFAULTS, Defaults
from sparkd.records.status import DeploymentStatus

T = TypeVar("T")


class Source(Protocol):
    """Whoever knows how a deployment is: a client, or a session that outlives a local set."""

    def deployment(self, name: str) -> DeploymentStatus: ...


class Patience:
    """Asks again while the coordinator is away or starting, up to `client_outage_s`, and says so once."""

    def __init__(
        self,
        say: Callable[[str], None],
        *,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
        limits: Defaults = DEFAULTS,
    ) -> None:
        self._say = say
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._limits = limits

    def ask(self, question: Callable[[], T], *, only_starting: bool = False) -> T:
        """The answer to `question`. Raises the coordinator's last error when it stayed away.

        `only_starting`: a coordinator that was never reached is an error at once.
        """
        lost_at: float | None = None
        while True:
            try:
                answer = question()
            except Unavailable as error:
                now = self._clock.now().mono
                if only_starting and not isinstance(error, CoordinatorStarting):
                    raise
                if lost_at is None:
                    lost_at = now
                    self._say(f"{error}; asking again for {self._limits.client_outage_s:.0f} s")
                if now - lost_at >= self._limits.client_outage_s:
                    raise
                self._sleep(self._limits.client_poll_s)
            else:
                if lost_at is not None:
                    self._say("the coordinator answers again")
                return answer

    def watch(self, question: Callable[[], T], timeout_s: float | None = None) -> Iterator[T]:
        """Its answers, again and again. Raises TimedOut when `timeout_s` is over; the caller says of what."""
        until = None if timeout_s is None else self._clock.now().mono + timeout_s
        while True:
            yield self.ask(question)
            if until is not None and self._clock.now().mono >= until:
                raise TimedOut(f"not done after {timeout_s:g} s")
            self._sleep(self._limits.client_poll_s)


def until_settled(
    source: Source,
    name: str,
    display: Display,
    patience: Patience,
    timeout_s: float | None,
    *,
    after_generation: int = 0,
) -> DeploymentStatus:
    """Follow a deployment that was asked for until it is ready, failed or stopped by somebody.

    Ready counts only in a generation after `after_generation`: what a restart has not ended yet is ready too.
    Raises TimedOut with what it was waiting for.
    """
    status: DeploymentStatus | None = None
    try:
        for status in patience.watch(lambda: source.deployment(name), timeout_s):
            display.update(status)
            is_old = status.phase == "ready" and status.generation <= after_generation
            if status.phase in {"ready", "failed", "stopped"} and not is_old:
                return status
    except TimedOut as error:
        phase = f"{status.phase}: {status.reason}" if status else "unknown"
        raise TimedOut(
            f"{name} is not ready after {timeout_s:g} s ({phase}); it goes on: "
            f"`sparkd status {name}` shows it, `sparkd down {name}` stops it"
        ) from error
    raise AssertionError("a watch does not end")


def until_stopped(
    source: Source, name: str, display: Display, patience: Patience, timeout_s: float | None
) -> DeploymentStatus:
    """Follow a deployment that was asked to stop. Raises TimedOut with what it was waiting for."""
    status: DeploymentStatus | None = None
    try:
        for status in patience.watch(lambda: source.deployment(name), timeout_s):
            display.update(status)
            if status.phase == "stopped" or status.desired == "up":
                return status
    except TimedOut as error:
        waiting = status.waiting_for.what if status and status.waiting_for else "its ranks to end"
        raise TimedOut(
            f"{name} is not stopped after {timeout_s:g} s: waiting for {waiting}; it goes on stopping"
        ) from error
    raise AssertionError("a watch does not end")
