import asyncio

from sparkd.coordinator.gathered import Gathering


class Recorder(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.seen.append(bytes(data))

    def close(self) -> None:
        self.seen.append(b"closed")


def test_one_turn_of_the_loop_is_one_write() -> None:
    async def run() -> list[bytes]:
        recorder = Recorder()
        gathering = Gathering(recorder, asyncio.get_running_loop())
        gathering.write(b"head ")
        gathering.write(memoryview(b"body"))
        assert recorder.seen == []
        await asyncio.sleep(0)
        gathering.write(b"later")
        await asyncio.sleep(0)
        return recorder.seen

    assert asyncio.run(run()) == [b"head body", b"later"]


def test_what_waits_leaves_before_the_end() -> None:
    async def run() -> list[bytes]:
        recorder = Recorder()
        gathering = Gathering(recorder, asyncio.get_running_loop())
        gathering.write(b"last words")
        gathering.close()
        await asyncio.sleep(0)
        return recorder.seen

    assert asyncio.run(run()) == [b"last words", b"closed"]
