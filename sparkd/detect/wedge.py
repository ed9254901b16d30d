"""Whether the engine still computes: when to send a pulse, and when an unanswered one means a wedge.

    no token for silence_s ──> SendPulse ──> answered ──> proof; silent again
                                   ├── outstanding, some counter moves  ──> wait (long prefill, load)
                                   ├── outstanding, a compiler runs     ──> wait, at most compile_excuse_s
                                   ├── outstanding, all still for timeout_s ──> Wedged: collective
                                   └── undelivered or answered by an error ──> again after retry_s; says
                                       nothing about the engine; after undelivered_s ──> Wedged: api

A counter that moves means a completed step; in vLLM 0.32 the token counters stand still during a long
prefill, but the KV gauge moves with each chunk (`sparkd.engine.metrics`). Number of running requests is no
condition: it reads 0 while the first step of a request hangs (measured, 0.32).

A process in state T makes a pulse due at once; if that is not answered, the process is named.
Times are monotonic seconds.
"""

from dataclasses import dataclass, replace
from typing import Literal

from sparkd.engine.metrics import Counters
from sparkd.records.defaults import DEFAULTS

WedgeKind = Literal["stopped", "collective", "api"]


@dataclass(frozen=True, slots=True)
class Limits:
    silence_s: float = DEFAULTS.pulse_silence_s
    timeout_s: float = DEFAULTS.pulse_timeout_s
    stopped_s: float = DEFAULTS.stopped_state_s
    compile_excuse_s: float = DEFAULTS.compile_excuse_s
    retry_s: float = DEFAULTS.pulse_retry_s
    undelivered_s: float = DEFAULTS.pulse_undelivered_s


@dataclass(frozen=True, slots=True)
class Stopped:
    """A process of a rank in state T."""

    who: str
    """As it is shown: `rank 1's VLLM::Worker_TP1 (pid 812)`."""
    since: float


@dataclass(frozen=True, slots=True)
class Look:
    """One look around. `counters` None: /metrics did not answer."""

    counters: Counters | None
    compiling: bool = False
    """A compiler child of any rank lives."""
    stopped: tuple[Stopped, ...] = ()


@dataclass(frozen=True, slots=True)
class Pulse:
    """What is known of the engine's pulse. Begin with `Pulse(began_at=now)`: the first one is due at once."""

    began_at: float
    counters: Counters | None = None
    looked_at: float | None = None
    """Last time /metrics answered."""
    moved_at: float | None = None
    """Last time some counter had moved."""
    proof_at: float | None = None
    """Last token that needed every rank; None before the first."""
    sent_at: float | None = None
    """Of the outstanding pulse."""
    failing_since: float | None = None
    """Pulses come to nothing since then; None after a token."""
    failure: str = ""
    failed_at: float | None = None
    compiled_at: float | None = None
    """Until when a compiler excuses the outstanding pulse."""
    stopped: tuple[Stopped, ...] = ()
    asked_at: float | None = None
    """Somebody wants a proof younger than this."""

    def proof_age(self, now: float) -> float | None:
        return None if self.proof_at is None else max(0.0, now - self.proof_at)


@dataclass(frozen=True, slots=True)
class SendPulse:
    """Send one now; an older one that is still outstanding is given up."""

    reason: str


@dataclass(frozen=True, slots=True)
class Wedged:
    kind: WedgeKind
    reason: str


def look(pulse: Pulse, seen: Look, now: float, limits: Limits) -> Pulse:
    """Take one look into account.

    New tokens are a proof from the time of the look before: they came at some moment since then.
    """
    pulse = replace(pulse, stopped=seen.stopped)
    if seen.compiling and pulse.sent_at is not None:
        pulse = replace(pulse, compiled_at=min(now, pulse.sent_at + limits.compile_excuse_s))
    if seen.counters is None:
        return pulse
    before, before_at = pulse.counters, pulse.looked_at
    pulse = replace(pulse, counters=seen.counters, looked_at=now)
    if before is None or before_at is None:
        return pulse
    if seen.counters.moved_since(before):
        pulse = replace(pulse, moved_at=now)
    if seen.counters.tokens_since(before):
        pulse = _proved(pulse, before_at)
    return pulse


def sent(pulse: Pulse, now: float) -> Pulse:
    return replace(pulse, sent_at=now, compiled_at=None)


def answered(pulse: Pulse, now: float) -> Pulse:
    """At least one token came back."""
    return _proved(replace(pulse, sent_at=None), now)


def asked(pulse: Pulse, now: float) -> Pulse:
    """A proof is wanted now, because a node of the gang is silent."""
    return replace(pulse, asked_at=now)


def failed(pulse: Pulse, why: str, now: float) -> Pulse:
    """The pulse was not delivered, or was answered without a token: nothing is known about the engine."""
    since = now if pulse.failing_since is None else pulse.failing_since
    return replace(pulse, sent_at=None, failing_since=since, failed_at=now, failure=why)


def decide(pulse: Pulse, now: float, limits: Limits) -> SendPulse | Wedged | None:
    """What to do now; None: wait."""
    frozen = _named(pulse, now, limits) or _unanswered(pulse, now, limits) or _fruitless(pulse, now, limits)
    return frozen or _due(pulse, now, limits)


def _proved(pulse: Pulse, at: float) -> Pulse:
    latest = at if pulse.proof_at is None else max(at, pulse.proof_at)
    return replace(pulse, proof_at=latest, failing_since=None, failed_at=None, failure="")


def _outstanding(pulse: Pulse) -> float | None:
    """When the pulse was sent that waits for its answer; one that later tokens overtook proves nothing."""
    if pulse.sent_at is None or (pulse.proof_at is not None and pulse.proof_at > pulse.sent_at):
        return None
    return pulse.sent_at


def _silence(pulse: Pulse, now: float) -> str:
    age = pulse.proof_age(now)
    return f"no token for {age:.0f} s" if age is not None else f"no token since {now - pulse.began_at:.0f} s"


def _named(pulse: Pulse, now: float, limits: Limits) -> Wedged | None:
    sent_at = _outstanding(pulse)
    if sent_at is None or now - sent_at < limits.stopped_s / 2:
        return None
    for process in pulse.stopped:
        if now - process.since >= limits.stopped_s and (
            pulse.proof_at is None or pulse.proof_at <= process.since
        ):
            return Wedged(
                "stopped",
                f"{process.who} is stopped (state T) since {now - process.since:.0f} s, and a completion of "
                f"one token is not answered since {now - sent_at:.0f} s",
            )
    return None


def _unanswered(pulse: Pulse, now: float, limits: Limits) -> Wedged | None:
    sent_at = _outstanding(pulse)
    if sent_at is None:
        return None
    quiet_since = max(sent_at, pulse.moved_at or sent_at, pulse.compiled_at or sent_at)
    if now - quiet_since < limits.timeout_s:
        return None
    told = f"a completion of one token is not answered since {now - sent_at:.0f} s ({_silence(pulse, now)})"
    looked_at = pulse.looked_at
    if looked_at is not None and looked_at >= quiet_since and now - looked_at < limits.timeout_s / 2:
        if pulse.compiled_at is not None and pulse.compiled_at >= sent_at + limits.compile_excuse_s:
            told += f", and a compiler has run for more than {limits.compile_excuse_s:.0f} s meanwhile"
        return Wedged(
            "collective",
            f"the API answers, but the engine completes no step: {told}, and no counter moved for "
            f"{now - quiet_since:.0f} s: "
            "a collective does not return, and no process of this node is stopped",
        )
    if now - quiet_since >= limits.undelivered_s:
        return Wedged("api", f"the API takes requests and answers none, /metrics neither: {told}")
    return None


def _fruitless(pulse: Pulse, now: float, limits: Limits) -> Wedged | None:
    if pulse.failing_since is None or pulse.sent_at is not None:
        return None
    since = max(pulse.failing_since, pulse.moved_at or pulse.failing_since)
    if now - since < limits.undelivered_s:
        return None
    return Wedged("api", f"{pulse.failure}, again and again since {now - since:.0f} s")


def _due(pulse: Pulse, now: float, limits: Limits) -> SendPulse | None:
    if _outstanding(pulse) is not None:
        return None
    if pulse.failed_at is not None and now - pulse.failed_at < limits.retry_s:
        return None
    if pulse.proof_at is None:
        return SendPulse("no token yet")
    for process in pulse.stopped:
        if pulse.proof_at <= process.since:
            return SendPulse(f"{process.who} is stopped")
    if pulse.asked_at is not None and pulse.proof_at < pulse.asked_at:
        return SendPulse("a node of the gang is silent")
    if now - pulse.proof_at >= limits.silence_s:
        return SendPulse(_silence(pulse, now))
    return None
