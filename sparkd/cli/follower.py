"""Successive states of one deployment -> lines for a log or a pipe: one for each change. Pure."""

from dataclasses import dataclass

from sparkd.cli.output import progress_text, waiting_text
from sparkd.records.defaults import DEFAULTS, Defaults
from sparkd.records.status import DeploymentStatus, RankStatus


@dataclass(slots=True)
class _Told:
    """What was last said of a rank, and when."""

    phase: str
    step: int
    text: str
    at: float


class Follower:
    """Knows what was told already. `elapsed` is seconds since the command began."""

    def __init__(self, limits: Defaults = DEFAULTS) -> None:
        self._limits = limits
        self._head: tuple[str, int, str] | None = None
        self._ranks: dict[tuple[int, int], _Told] = {}
        self._waiting: tuple[object, ...] | None = None
        self._waiting_at = float("-inf")

    def lines(self, status: DeploymentStatus, elapsed: float, now: float) -> list[str]:
        """What is new. Phases and reasons at once; a rank at each step of `plain_step_percent` and else, if
        anything moved, each `plain_step_s`; what is waited for when it changes, no oftener than that.
        `now` is wall clock.
        """
        texts: list[str] = []
        head = (status.phase, status.generation, status.reason)
        if head != self._head:
            self._head = head
            texts.append(f"{status.name} {status.phase} (generation {status.generation}): {status.reason}")
        texts += [
            f"rank {rank.rank} on {rank.node} {rank.phase}  {progress_text(rank)}".rstrip()
            for rank in status.ranks
            if self._is_new(rank, status.generation, elapsed)
        ]
        texts += self._waiting_line(status, elapsed, now)
        return [f"{elapsed:7.1f} s  {text}" for text in texts]

    def _is_new(self, rank: RankStatus, generation: int, elapsed: float) -> bool:
        percent = rank.progress.percent
        step = -1 if percent is None else int(percent // self._limits.plain_step_percent)
        text = progress_text(rank)
        told = self._ranks.get((generation, rank.rank))
        if told is not None and told.phase == rank.phase and step <= told.step:
            is_due = elapsed - told.at >= self._limits.plain_step_s
            if not is_due or text == told.text:
                return False
        self._ranks[generation, rank.rank] = _Told(rank.phase, step, text, elapsed)
        return True

    def _waiting_line(self, status: DeploymentStatus, elapsed: float, now: float) -> list[str]:
        waiting = status.waiting_for
        key = (waiting.what, waiting.rank, waiting.node) if waiting else None
        if waiting is None or key == self._waiting:
            return []
        if elapsed - self._waiting_at < self._limits.plain_step_s:
            return []
        self._waiting, self._waiting_at = key, elapsed
        return [waiting_text(waiting, now)]
