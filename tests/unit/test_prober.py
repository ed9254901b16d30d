"""How the prober reads answers; the API is a list of them."""

import asyncio
from collections.abc import Mapping

import msgspec
import pytest

from sparkd.errors import AnswerBroken, ExchangeFailed, NotAnswered, NotConnected
from sparkd.records.rank import Address, Canary, Probe
from sparkd.records.report import ProbeReport
from sparkd_agent.http import Response
from sparkd_agent.prober import Prober

CANARY = Canary(({"role": "user", "content": "12 x 7?"},), contains="84", timeout_s=5)


def completion(tokens: int = 1, **message: str | None) -> Response:
    body = {"choices": [{"index": 0, "message": message}], "usage": {"completion_tokens": tokens}}
    return Response(200, msgspec.json.encode(body))


class Api:
    """Answers completions from the list, the last one for ever; everything else as a healthy API does."""

    def __init__(self, *answers: Response | ExchangeFailed) -> None:
        self.answers = list(answers)
        self.asked: list[bytes] = []
        self.keys: set[str] = set()

    async def __call__(
        self,
        address: Address,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout_s: float = 6,
        max_body: int = 1 << 20,
    ) -> Response:
        if method == "GET":
            return Response(200, b"")
        self.asked.append(body)
        self.keys.add((headers or {}).get("authorization", ""))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, ExchangeFailed):
            raise answer
        return answer


def after_canary(api: Api, canary: Canary = CANARY) -> ProbeReport:
    """What the prober reports once it is warmed or has failed."""

    async def run() -> ProbeReport:
        probe = Probe(Address("127.0.0.1", 8100), "tiny", (canary,))
        prober = Prober(probe, "k", exchange=api, interval_s=0.01)
        task = asyncio.create_task(prober.run())
        async with asyncio.timeout(10):
            while not (prober.report().warmed or prober.report().failed):
                await asyncio.sleep(0.005)
        report = prober.report()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return report

    return asyncio.run(run())


@pytest.mark.parametrize(
    "answer",
    [
        completion(content="It is 84."),
        completion(content=None, reasoning="12 times 7 is 84, so"),
        completion(content="", reasoning_content="84"),
    ],
)
def test_right_answers(answer: Response) -> None:
    report = after_canary(Api(answer))
    assert report.warmed
    assert report.failed is None
    assert report.proof_age_s is not None


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (completion(content="It is 85."), 'answered "It is 85.", which lacks "84"'),
        (completion(tokens=0, content=""), "without a token"),
        (Response(400, b'{"error": "max_tokens is too large"}'), "HTTP 400"),
        (Response(404, b"no such model"), "no such model"),
    ],
)
def test_wrong_answers_are_final(answer: Response, told: str) -> None:
    api = Api(answer)
    report = after_canary(api)
    assert told in (report.failed or "")
    assert len(api.asked) == 1


@pytest.mark.parametrize(
    "trouble",
    [
        NotConnected("127.0.0.1:8100 cannot be reached"),
        AnswerBroken("127.0.0.1:8100 broke off"),
        Response(503, b"busy"),
        Response(200, b'{"choices": []}'),
        Response(200, b"<html>"),
    ],
)
def test_trouble_is_asked_about_again_and_told_in_the_end(trouble: Response | ExchangeFailed) -> None:
    assert after_canary(Api(trouble, trouble, completion(content="84"))).warmed
    impatient = Canary(CANARY.messages, contains="84", timeout_s=0.1)
    assert "was not answered within 0.1 s" in (after_canary(Api(trouble), impatient).failed or "")


def test_what_is_asked() -> None:
    api = Api(completion(content="84"))
    after_canary(api)
    assert msgspec.json.decode(api.asked[0]) == {
        "model": "tiny",
        "temperature": 0,
        "messages": [{"role": "user", "content": "12 x 7?"}],
        "max_tokens": 64,
    }
    assert api.keys == {"Bearer k"}


def test_a_frozen_api_of_an_adopted_rank_gets_its_pulse_all_the_same() -> None:
    class Frozen(Api):
        async def __call__(self, address: Address, method: str, path: str, **more: object) -> Response:
            if method == "GET":
                raise NotAnswered("not within 5 s")
            self.asked.append(b"pulse")
            return await asyncio.get_running_loop().create_future()

    async def run() -> None:
        api = Frozen()
        prober = Prober(Probe(Address("127.0.0.1", 8100), "tiny"), exchange=api, warmed=True, interval_s=0.01)
        task = asyncio.create_task(prober.run())
        async with asyncio.timeout(10):
            while not api.asked:
                await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
