"""Rank 0's prober: asks the API what only a whole gang can answer.

    waiting for the API ──> canaries ──> warm-ups ──> serving: the pulse, for as long as it runs
                               └── wrong answer, or none in time ──> failed (for good)

What a missing pulse means is decided in `sparkd.detect.wedge`; here are only the requests.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from sparkd.clock import Clock, SystemClock
from sparkd.detect import wedge
from sparkd.engine.metrics import Counters, read_metrics
from sparkd.errors import ExchangeFailed, NotConnected
from sparkd.records.defaults import DEFAULTS
from sparkd.records.rank import Canary, Probe
from sparkd.records.report import ProbeReport
from sparkd_agent.http import Exchange, Response, request

_SHOWN_CHARACTERS: Final = 160
_PULSE_MAX_S: Final = DEFAULTS.compile_excuse_s + DEFAULTS.pulse_undelivered_s
"""A pulse may stay outstanding while an excuse holds; beyond that it is lost and another one is sent."""


@dataclass(frozen=True, slots=True)
class Around:
    """What the agent sees of the rank's processes while the prober asks."""

    compiling: bool = False
    stopped: tuple[wedge.Stopped, ...] = ()


class Prober:
    """Asks one API, until `run` is cancelled. `report()` may be called at any time.

    `warmed`: this generation has answered its canaries and warm-ups before (an adopted rank); a pulse is
    then sent at once. `on_change` is called whenever the API came up or went away, and when the prober
    found warmed, failed, wedged, or the end of a wedge. `is_ours` says whether the API that answers is the
    rank's own: another program on that port must not answer its canaries. The key goes into the
    Authorization header only.
    """

    def __init__(
        self,
        probe: Probe,
        api_key: str | None = None,
        *,
        warmed: bool = False,
        clock: Clock | None = None,
        exchange: Exchange = request,
        around: Callable[[], Around] = Around,
        is_ours: Callable[[], bool] = lambda: True,
        on_change: Callable[[ProbeReport], None] = lambda _: None,
        interval_s: float = DEFAULTS.pulse_retry_s,
    ) -> None:
        self._probe = probe
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._clock = clock or SystemClock()
        self._exchange = exchange
        self._around = around
        self._is_ours = is_ours
        self._on_change = on_change
        self._interval_s = interval_s
        self._limits = wedge.Limits(silence_s=probe.pulse_silence_s, timeout_s=probe.pulse_timeout_s)
        self._pulse = wedge.Pulse(began_at=self._now())
        self._outstanding: asyncio.Task[None] | None = None
        self._asked = asyncio.Event()
        self._report = ProbeReport(warmed=warmed, detail="waiting for the API")

    def report(self) -> ProbeReport:
        now = self._now()
        moved = self._pulse.moved_at
        return replace(
            self._report,
            proof_age_s=self._pulse.proof_age(now),
            moved_age_s=None if moved is None else max(0.0, now - moved),
        )

    def ask_pulse(self) -> None:
        """A proof is wanted now; it shows in the next reports."""
        self._pulse = wedge.asked(self._pulse, self._now())
        self._asked.set()

    async def run(self) -> None:
        """Ends by itself only when a canary or warm-up failed."""
        # An API that answered before is not waited for: if it is frozen now, only the pulse will tell.
        if not self._report.warmed:
            await self._wait_for_api()
            for name, asked in self._questions():
                self._note(detail=name)
                wrong = await self._ask(asked, name)
                if wrong is not None:
                    self._note(failed=wrong, detail=f"{name} failed")
                    return
            self._note(warmed=True)
        try:
            await self._keep_pulse()
        finally:
            self._give_up_pulse()

    async def _wait_for_api(self) -> None:
        while not self._report.api_up:
            with suppress(ExchangeFailed):
                answer = await self._get("/health")
                if answer.status == 200 and self._is_ours():
                    self._note(api_up=True)
                    return
            await asyncio.sleep(min(0.5, self._interval_s))

    async def _get(self, path: str) -> Response:
        return await self._exchange(self._probe.api, "GET", path, timeout_s=DEFAULTS.metrics_timeout_s)

    def _questions(self) -> Iterator[tuple[str, Canary]]:
        for kind, row in (("canary", self._probe.canaries), ("warm-up", self._probe.warmup)):
            for number, asked in enumerate(row, start=1):
                yield f"{kind} {number} of {len(row)}", asked

    # Canaries and warm-ups.

    async def _ask(self, canary: Canary, name: str) -> str | None:
        """Why the answer is not as expected; None when it is.

        Asked again until its time is over, unless it was answered or the API refuses the request itself.
        """
        end = self._now() + canary.timeout_s
        last = "no answer"
        while (left := end - self._now()) > 0:
            body = {"messages": canary.messages, "max_tokens": canary.max_tokens}
            try:
                answer = await self._complete("/v1/chat/completions", body, timeout_s=left)
            except ExchangeFailed as error:
                last = str(error)
            else:
                if isinstance(answer, _Answer):
                    self._pulse = wedge.answered(self._pulse, self._now())
                    return _wrong(canary, answer, name)
                last = answer.text
                if answer.status < 500:
                    return f"{name} was refused: {last}"
            await asyncio.sleep(min(self._interval_s, max(0.0, end - self._now())))
        return f"{name} was not answered within {canary.timeout_s:g} s: {last}"

    async def _complete(self, path: str, body: dict[str, Any], *, timeout_s: float) -> "_Answer | _Refusal":
        asked = {"model": self._probe.model, "temperature": 0, **body}
        headers = {"content-type": "application/json", **self._headers}
        answer = await self._exchange(
            self._probe.api,
            "POST",
            path,
            headers=headers,
            body=msgspec.json.encode(asked),
            timeout_s=timeout_s,
        )
        return _read_answer(answer.status, answer.body)

    # The pulse.

    async def _keep_pulse(self) -> None:
        while True:
            around = self._around()
            seen = wedge.Look(await self._look(), around.compiling, around.stopped)
            self._pulse = wedge.look(self._pulse, seen, self._now(), self._limits)
            self._act(wedge.decide(self._pulse, self._now(), self._limits))
            await self._rest()

    async def _look(self) -> Counters | None:
        try:
            answer = await self._get("/metrics")
        except NotConnected:
            self._note(api_up=False)
            return None
        except ExchangeFailed:
            return None
        self._note(api_up=True)
        return read_metrics(answer.body.decode("utf-8", "replace")) if answer.status == 200 else None

    def _act(self, decision: wedge.SendPulse | wedge.Wedged | None) -> None:
        if isinstance(decision, wedge.Wedged):
            # The first reason stays: later ones differ in their seconds only.
            self._note(wedged=self._report.wedged or decision.reason, detail="wedged")
            return
        self._note(wedged=None)
        if isinstance(decision, wedge.SendPulse):
            self._give_up_pulse()
            self._pulse = wedge.sent(self._pulse, self._now())
            self._outstanding = asyncio.create_task(self._send_pulse(), name="pulse")
            self._note(detail=f"pulse sent: {decision.reason}")
        elif self._outstanding is None:
            self._note(detail=self._pulse.failure or "serving")

    async def _send_pulse(self) -> None:
        try:
            answer = await self._complete(
                "/v1/completions", {"prompt": "1", "max_tokens": 1}, timeout_s=_PULSE_MAX_S
            )
        except ExchangeFailed as error:
            self._pulse = wedge.failed(self._pulse, str(error), self._now())
            return
        if isinstance(answer, _Answer) and answer.tokens > 0:
            self._pulse = wedge.answered(self._pulse, self._now())
        else:
            self._pulse = wedge.failed(self._pulse, f"a pulse was answered with {answer.text}", self._now())

    async def _rest(self) -> None:
        """Until the next look, or until the pulse is answered."""
        if self._outstanding is None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), self._interval_s)
            self._asked.clear()
            return
        await asyncio.wait({self._outstanding}, timeout=self._interval_s)
        if self._outstanding.done():
            task, self._outstanding = self._outstanding, None
            task.result()

    def _give_up_pulse(self) -> None:
        if self._outstanding is not None:
            self._outstanding.cancel()
            self._outstanding = None

    # What is told.

    def _now(self) -> float:
        return self._clock.now().mono

    def _note(self, **changes: Any) -> None:
        before, self._report = self._report, replace(self._report, **changes)
        if _gist(self._report) != _gist(before):
            self._on_change(self.report())


def _gist(report: ProbeReport) -> tuple[object, ...]:
    """What a change of is worth telling at once."""
    return (report.api_up, report.warmed, report.failed, report.wedged)


@dataclass(frozen=True, slots=True)
class _Answer:
    text: str
    tokens: int


@dataclass(frozen=True, slots=True)
class _Refusal:
    status: int
    text: str


class _Message(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    """The name of `reasoning` in older versions."""


class _Choice(msgspec.Struct):
    text: str | None = None
    message: _Message | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int = 0


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage = msgspec.field(default_factory=_Usage)


def _read_answer(status: int, body: bytes) -> _Answer | _Refusal:
    if status != 200:
        return _Refusal(status, f"HTTP {status} {_short(body.decode('utf-8', 'replace'))}")
    try:
        completion = msgspec.json.decode(body, type=_Completion)
        choice = completion.choices[0]
    except (msgspec.MsgspecError, IndexError):
        return _Refusal(502, f"no completion: {_short(body.decode('utf-8', 'replace'))}")
    said = choice.message or _Message(content=choice.text)
    # A model that thinks aloud may have used up its tokens before it came to the answer proper.
    parts = [part for part in (said.reasoning, said.reasoning_content, said.content) if part]
    return _Answer("\n".join(parts), completion.usage.completion_tokens)


def _wrong(canary: Canary, answer: _Answer, name: str) -> str | None:
    if answer.tokens < 1:
        return f"{name} was answered without a token"
    if canary.contains is None or canary.contains in answer.text:
        return None
    return f'{name} was answered "{_short(answer.text)}", which lacks "{canary.contains}"'


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN_CHARACTERS else line[: _SHOWN_CHARACTERS - 1] + "…"
