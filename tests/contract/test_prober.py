"""The prober against a gang of stand-ins: real processes, real sockets, limits of tenths of a second."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from sparkd.engine.metrics import Counters, read_metrics
from sparkd.records.rank import Address, Canary, Probe
from sparkd.records.report import ProbeReport
from sparkd_agent.http import request
from sparkd_agent.prober import Prober
from tests.bed.gang import Gang, hand_started
from tests.bed.stand_in import configure, make_stand_in

SILENCE_S, TIMEOUT_S = 0.3, 0.8
TWELVE_TIMES_SEVEN = Canary(({"role": "user", "content": "What is 12 x 7?"},), contains="84", timeout_s=10)


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    make_stand_in(tmp_path)
    configure(tmp_path, EXIT_DELAY_S=0.2)
    return tmp_path


@pytest.fixture
def gang(engine: Path) -> Iterator[Gang]:
    with hand_started(
        engine / "bin" / "python", "/models/tiny", engine, env={"VLLM_API_KEY": "a-secret"}
    ) as gang:
        yield gang


def probe(gang: Gang, *canaries: Canary, warmup: tuple[Canary, ...] = ()) -> Probe:
    api = Address("127.0.0.1", gang.api_port)
    return Probe(api, "tiny", canaries, warmup, pulse_silence_s=SILENCE_S, pulse_timeout_s=TIMEOUT_S)


@asynccontextmanager
async def probing(
    probe: Probe, *, warmed: bool = False, key: str | None = "a-secret"
) -> AsyncIterator[tuple[Prober, list[ProbeReport]]]:
    changes: list[ProbeReport] = []
    prober = Prober(probe, key, warmed=warmed, on_change=changes.append, interval_s=0.1)
    task = asyncio.create_task(prober.run())
    try:
        yield prober, changes
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(look: Callable[[], bool], timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not look():
            await asyncio.sleep(0.02)


async def counters(gang: Gang) -> Counters:
    answer = await request(Address("127.0.0.1", gang.api_port), "GET", "/metrics")
    return read_metrics(answer.body.decode())


def test_from_nothing_to_serving(gang: Gang) -> None:
    async def run() -> None:
        question = Canary(({"role": "user", "content": "hello"},), max_tokens=5)
        async with probing(probe(gang, TWELVE_TIMES_SEVEN, warmup=(question,))) as (prober, changes):
            assert prober.report() == ProbeReport(detail="waiting for the API")
            await until(lambda: prober.report().warmed)
            assert [(c.api_up, c.warmed) for c in changes] == [(True, False), (True, True)]
            age = prober.report().proof_age_s
            assert age is not None
            assert age < SILENCE_S + TIMEOUT_S
            assert prober.report().failed is None

    asyncio.run(run())
    for rank in gang.ranks:
        assert "a-secret" not in rank.log()


def test_a_wrong_answer_is_shown_and_final(engine: Path, gang: Gang) -> None:
    configure(engine, ANSWER="the the the " + "la " * 100)

    async def run() -> None:
        async with probing(probe(gang, TWELVE_TIMES_SEVEN)) as (prober, changes):
            await until(lambda: prober.report().failed is not None)
            report = prober.report()
            assert report.failed is not None
            assert re.match(
                r'canary 1 of 1 was answered "the the the la.*…", which lacks "84"', report.failed
            )
            assert len(report.failed) < 250
            assert not report.warmed
            assert changes[-1].failed == report.failed

    asyncio.run(run())


def test_a_refused_canary_is_final(gang: Gang) -> None:
    async def run() -> None:
        async with probing(probe(gang, TWELVE_TIMES_SEVEN), key="another") as (prober, _):
            await until(lambda: prober.report().failed is not None)
            assert "HTTP 401" in (prober.report().failed or "")

    asyncio.run(run())


def test_a_canary_without_an_answer_fails_at_its_time(engine: Path, gang: Gang) -> None:
    configure(engine, HANG=1)

    async def run() -> None:
        impatient = Canary(TWELVE_TIMES_SEVEN.messages, contains="84", timeout_s=0.5)
        async with probing(probe(gang, impatient)) as (prober, _):
            await until(lambda: prober.report().failed is not None)
            assert "was not answered within 0.5 s" in (prober.report().failed or "")

    asyncio.run(run())


def test_pulses_keep_the_proof_young_and_traffic_replaces_them(gang: Gang) -> None:
    gang.ready(10)

    async def run() -> None:
        async with probing(probe(gang)) as (prober, _):
            await until(lambda: prober.report().proof_age_s is not None)
            before = await counters(gang)
            for _ in range(20):
                await asyncio.sleep(0.1)
                assert (prober.report().proof_age_s or 0) < SILENCE_S + TIMEOUT_S
            after = await counters(gang)
            # Two seconds of silence: at least 3 pulses, at most one per silence.
            pulses = (after.generation_tokens or 0) - (before.generation_tokens or 0)
            assert 3 <= pulses <= 2.5 / SILENCE_S

    asyncio.run(run())


def test_an_adopted_rank_is_asked_for_a_pulse_at_once_and_for_no_canary(gang: Gang) -> None:
    gang.ready(10)

    async def run() -> None:
        before = await counters(gang)
        async with probing(probe(gang, TWELVE_TIMES_SEVEN), warmed=True) as (prober, _):
            await until(lambda: prober.report().proof_age_s is not None)
            assert prober.report().warmed
            after = await counters(gang)
            assert (after.generation_tokens or 0) - (before.generation_tokens or 0) == 1

    asyncio.run(run())
    assert "/v1/chat/completions" not in gang.ranks[0].log()


def test_a_stopped_worker_is_a_wedge_until_it_goes_on(gang: Gang) -> None:
    gang.ready(10)

    async def run() -> None:
        async with probing(probe(gang), warmed=True) as (prober, changes):
            await until(lambda: prober.report().proof_age_s is not None)
            worker = gang.ranks[1].process("VLLM::Worker_TP1")
            os.kill(worker, signal.SIGSTOP)
            await until(lambda: prober.report().wedged is not None)
            wedged = prober.report()
            assert "no counter moved" in (wedged.wedged or "")
            assert wedged.proof_age_s is not None
            assert wedged.proof_age_s >= TIMEOUT_S
            assert wedged.api_up
            assert changes[-1].wedged == wedged.wedged
            os.kill(worker, signal.SIGCONT)
            await until(lambda: prober.report().wedged is None)
            await until(lambda: (prober.report().proof_age_s or 9) < SILENCE_S)

    asyncio.run(run())


@pytest.mark.parametrize("moves", ["kv", "prompt"])
def test_a_long_prefill_is_no_wedge(engine: Path, gang: Gang, moves: str) -> None:
    configure(engine, PREFILL_S=4 * TIMEOUT_S, PREFILL_MOVES=moves)
    gang.ready(10)

    async def run() -> None:
        async with probing(probe(gang), warmed=True) as (prober, changes):
            await until(lambda: prober.report().proof_age_s is not None)
            assert all(change.wedged is None for change in changes)

    asyncio.run(run())


def test_an_api_that_is_gone_is_not_a_wedge_at_once(gang: Gang) -> None:
    gang.ready(10)

    async def run() -> None:
        async with probing(probe(gang), warmed=True) as (prober, changes):
            await until(lambda: prober.report().proof_age_s is not None)
            gang.ranks[0].leader.kill()
            await until(lambda: not prober.report().api_up)
            await asyncio.sleep(SILENCE_S + 2 * TIMEOUT_S)
            assert all(change.wedged is None for change in changes)
            assert "cannot be reached" in prober.report().detail

    asyncio.run(run())
