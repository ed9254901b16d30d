"""How often a gang may fall before a person has to look. Pure."""

import hashlib
from dataclasses import dataclass, replace

from sparkd.diagnosis.rule import RetryClass
from sparkd.records.defaults import DEFAULTS, Defaults

_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Policy:
    """A profile's `restart` section. Seconds."""

    budget: int = DEFAULTS.restart_budget
    backoff_s: float = DEFAULTS.restart_backoff_s
    backoff_max_s: float = DEFAULTS.restart_backoff_max_s


@dataclass(frozen=True, slots=True)
class Budget:
    """Falls since the budget was last full, and the wall clock of each fall of the last 24 hours.

    Counted since full and not per hour: a model that loads in 30 minutes would loop for ever in an hourly
    window.
    """

    spent: int = 0
    memory_spent: int = 0
    recent: tuple[float, ...] = ()

    def charge(self, wall: float, retry: RetryClass) -> "Budget":
        return Budget(
            spent=self.spent + 1,
            memory_spent=self.memory_spent + (retry == "memory"),
            recent=(*(at for at in self.recent if wall - at < _DAY_S), wall),
        )

    def reclassify(self, before: RetryClass, after: RetryClass) -> "Budget":
        """The fall charged last turned out to be of another class."""
        return replace(self, memory_spent=self.memory_spent - (before == "memory") + (after == "memory"))

    def refill(self) -> "Budget":
        """Full again after a long enough `ready`; the day's count stays."""
        return replace(self, spent=0, memory_spent=0)


@dataclass(frozen=True, slots=True)
class Allowance:
    """Whether the gang may try again, after how long, and why."""

    allowed: bool
    delay_s: float
    reason: str


def allowance(
    budget: Budget, policy: Policy, retry: RetryClass, key: str, limits: Defaults = DEFAULTS
) -> Allowance:
    """Judge the budget after a fall was charged to it.

    `key` seeds the jitter (deployment and generation), so that the same fall always gives the same delay.
    """
    if retry == "never":
        return Allowance(False, 0.0, "a retry cannot cure this")
    if retry == "memory" and budget.memory_spent > 1:
        return Allowance(False, 0.0, "a second fall for memory: another try would only lower it further")
    if budget.spent > policy.budget:
        return Allowance(
            False, 0.0, f"fell {budget.spent} times, budget {policy.budget} (full again after a long ready)"
        )
    if len(budget.recent) > limits.restart_day_limit:
        return Allowance(False, 0.0, f"fell more than {limits.restart_day_limit} times in 24 hours")
    delay = min(policy.backoff_s * 2 ** (budget.spent - 1), policy.backoff_max_s)
    jitter = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4]) / 2**32
    delay *= 1 + limits.restart_jitter * jitter
    return Allowance(True, delay, f"try {budget.spent} of {policy.budget} after {delay:.1f} s")


def refill_after_s(boot_s: float, limits: Defaults = DEFAULTS) -> float:
    """How long `ready` must last until the budget is full again."""
    return max(limits.restart_refill_s, 2 * boot_s)
