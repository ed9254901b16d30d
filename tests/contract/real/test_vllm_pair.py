"""What we believe of vLLM, asked of the real one: two ranks started by hand, one boot for all tests here."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from sparkd.detect.progress import ProgressSample, begin, observe
from sparkd.engine.metrics import Counters, read_metrics
from sparkd.engine.phrases import PHASES
from sparkd.records.rank import Address, Canary, Probe
from sparkd_agent.http import request
from sparkd_agent.prober import Prober
from tests.bed.gang import Gang, hand_started

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
BOOT_S = 240
CHUNK = 64

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(BOOT_S + 60)]


@pytest.fixture(scope="module")
def gang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gang]:
    model = ROOT / ".models" / "tiny"
    subprocess.run(
        [PYTHON, ROOT / "tests" / "bed" / "make_tiny_model.py", model], check=True, capture_output=True
    )
    folder = tmp_path_factory.mktemp("pair")
    with hand_started(PYTHON, str(model), folder, args=("--max-num-batched-tokens", str(CHUNK))) as gang:
        gang.ready(BOOT_S)
        yield gang


def api(gang: Gang) -> Address:
    return Address("127.0.0.1", gang.api_port)


async def look(gang: Gang) -> Counters:
    return read_metrics((await request(api(gang), "GET", "/metrics")).body.decode())


async def until(wanted: Callable[[], bool], timeout_s: float) -> None:
    async with asyncio.timeout(timeout_s):
        while not wanted():
            await asyncio.sleep(0.05)


def test_logs_show_the_phases(gang: Gang) -> None:
    for rank, last in zip(gang.ranks, ("serving", "warming"), strict=True):
        progress, passed = begin(0.0), ["launching"]
        for line in (*rank.stdout.read_text().splitlines(), *rank.stderr.read_text().splitlines()):
            progress = observe(progress, ProgressSample(lines=(line,)), 0.0)
            if progress.phase != passed[-1]:
                passed.append(progress.phase)
        assert progress.phase == last
        assert passed == [phase for phase in PHASES if phase in passed]
        assert progress.facts["rendezvous"] == f"127.0.0.1:{gang.master_port}"


def test_the_kv_gauge_moves_during_a_prefill_and_the_token_counters_do_not(gang: Gang) -> None:
    """Why `Counters.moved_since` looks at the gauge: nothing else shows that a long prefill gets on."""

    async def run() -> None:
        body = msgspec.json.encode({"model": "tiny", "prompt": [5] * 4000, "max_tokens": 1})
        headers = {"content-type": "application/json"}
        start = await look(gang)
        prefill = asyncio.create_task(
            request(api(gang), "POST", "/v1/completions", headers=headers, body=body, timeout_s=100)
        )
        seen = [start]
        while not prefill.done():
            seen.append(await look(gang))
            await asyncio.sleep(0.02)
        assert (await prefill).status == 200
        during = [c for c in seen if c.generation_tokens == start.generation_tokens]
        assert len({c.kv_usage for c in during}) > 3

    asyncio.run(run())


def test_canary_pulse_and_a_stopped_worker(gang: Gang) -> None:
    async def run() -> None:
        canary = Canary(({"role": "user", "content": "Say something."},), max_tokens=4)
        probe = Probe(api(gang), "tiny", (canary,), pulse_silence_s=1, pulse_timeout_s=4)
        prober = Prober(probe, interval_s=0.2)
        task = asyncio.create_task(prober.run())
        try:
            await until(lambda: prober.report().warmed, 100)
            await asyncio.sleep(3)
            assert (prober.report().proof_age_s or 0.0) < 2, "pulses are answered"
            worker = gang.ranks[1].process("VLLM::Worker_TP1")
            os.kill(worker, signal.SIGSTOP)
            await until(lambda: prober.report().wedged is not None, 20)
            assert "no counter moved" in (prober.report().wedged or "")
            os.kill(worker, signal.SIGCONT)
            await until(lambda: prober.report().wedged is None, 20)
            await until(lambda: (prober.report().proof_age_s or 9.0) < 2, 20)
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    asyncio.run(run())
