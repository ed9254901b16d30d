"""How a deployment is shown while a command waits for it: lines, or bars on a terminal."""

import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from sparkd.cli.follower import Follower
from sparkd.cli.output import size, waiting_text
from sparkd.clock import Clock, Instant, SystemClock
from sparkd.records.status import DeploymentStatus

if TYPE_CHECKING:  # rich takes 50 ms, which only a terminal needs
    from rich.console import RenderableType


class Display(Protocol):
    def update(self, status: DeploymentStatus) -> None: ...
    def say(self, text: str) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Lines:
    """One line for each change, each with the seconds since the command began."""

    def __init__(self, write: Callable[[str], None], clock: Clock, began: Instant) -> None:
        self._write = write
        self._clock = clock
        self._began = began
        self._followers: dict[str, Follower] = {}

    def update(self, status: DeploymentStatus) -> None:
        now = self._clock.now()
        follower = self._followers.setdefault(status.name, Follower())
        for line in follower.lines(status, now.mono - self._began.mono, now.wall):
            self._write(line)

    def say(self, text: str) -> None:
        self._write(f"{self._clock.now().mono - self._began.mono:7.1f} s  {text}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_unused: object) -> None:
        pass


class Bars:
    """A bar for each rank, drawn anew with every status; what is said scrolls by above."""

    def __init__(self, clock: Clock, began: Instant) -> None:
        from rich.console import Console
        from rich.live import Live

        self._clock = clock
        self._began = began
        self._shown: dict[str, DeploymentStatus] = {}
        self._live = Live(console=Console(), refresh_per_second=8, transient=True, get_renderable=self._draw)

    def update(self, status: DeploymentStatus) -> None:
        self._shown[status.name] = status

    def say(self, text: str) -> None:
        self._live.console.print(text, markup=False, highlight=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_unused: object) -> None:
        self._live.stop()

    def _draw(self) -> "RenderableType":
        from rich.console import Group

        return Group(*(part for status in tuple(self._shown.values()) for part in self._draw_one(status)))

    def _draw_one(self, status: DeploymentStatus) -> "list[RenderableType]":
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        now = self._clock.now()
        grid = Table.grid(padding=(0, 2))
        for rank in status.ranks:
            percent = rank.progress.percent
            grid.add_row(
                Text(f"rank {rank.rank}"),
                Text(rank.node),
                Text(rank.phase),
                ProgressBar(total=100, completed=percent or 0, width=24, pulse=percent is None),
                Text(f"{percent:3.0f} %" if percent is not None else ""),
                Text(size(rank.progress.rss_bytes) if rank.progress.rss_bytes else ""),
                Text(rank.progress.detail, overflow="ellipsis", no_wrap=True),
            )
        elapsed = now.mono - self._began.mono
        head = (
            f"{status.name} {status.phase} (generation {status.generation}) {elapsed:.0f} s: {status.reason}"
        )
        waiting = [Text(f"  {waiting_text(status.waiting_for, now.wall)}")] if status.waiting_for else []
        return [Text(head), grid, *waiting]


def new_display(is_quiet: bool) -> Display:
    """Bars if a terminal is attached, else lines; `is_quiet` keeps stdout for the answer."""
    from sparkd.cli.output import say, show

    clock = SystemClock()
    if is_quiet:
        return Lines(say, clock, clock.now())
    if sys.stdout.isatty():
        return Bars(clock, clock.now())
    return Lines(lambda line: show([line]), clock, clock.now())
