import asyncio
import threading

import pytest

from sparkd_agent.one_at_a_time import OneAtATime

PATIENCE_S = 10.0


def test_while_one_hangs_no_other_is_begun() -> None:
    begun, go_on = [], threading.Event()

    def hang() -> int:
        begun.append(1)
        go_on.wait(PATIENCE_S)
        return len(begun)

    async def run() -> None:
        looks = OneAtATime[int]()
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await looks.ask(hang, 0.01)
        assert begun == [1]
        go_on.set()
        assert await looks.ask(hang, PATIENCE_S) == 1
        assert await looks.ask(hang, PATIENCE_S) == 2

    asyncio.run(run())


def test_what_goes_wrong_is_told_and_the_next_one_is_begun() -> None:
    def fail() -> int:
        raise OSError("gone")

    async def run() -> None:
        looks = OneAtATime[int]()
        with pytest.raises(OSError, match="gone"):
            await looks.ask(fail, PATIENCE_S)
        assert await looks.ask(lambda: 7, PATIENCE_S) == 7

    asyncio.run(run())
