"""What a daemon tells systemd, heard at the other end of a real socket."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkd.notify import Notifier
from tests.bed.systemd import NotifySocket

INTERVAL_S = 0.06


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path):  # noqa: ANN201 - a fixture that ends it
    name = str(tmp_path / "notify") if request.param == "path" else f"@sparkd-test-{id(tmp_path)}"
    one = NotifySocket(name)
    yield one
    one.close()


def keep(
    notifier: Notifier,
    *,
    well: Callable[[], bool] = lambda: True,
    status: Callable[[], str] = lambda: "as before",
    for_s: float = INTERVAL_S,
) -> None:
    async def within() -> None:
        task = asyncio.create_task(notifier.keep(well=well, status=status))
        await asyncio.sleep(for_s)
        task.cancel()

    asyncio.run(within())


def watched(systemd: NotifySocket, **more: str) -> Notifier:
    usec = str(int(INTERVAL_S * 1e6))
    return Notifier({"NOTIFY_SOCKET": systemd.address, "WATCHDOG_USEC": usec, **more}, pid=7)


def test_ready_comes_with_a_line_of_status(systemd: NotifySocket) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": systemd.address})
    notifier.ready("not connected yet; no rank")
    assert systemd.hears() == "READY=1\nSTATUS=not connected yet; no rank"
    notifier.stopping()
    assert systemd.hears().startswith("STOPPING=1\n")
    notifier.close()


def test_the_watchdog_hears_three_beats_in_its_interval(systemd: NotifySocket) -> None:
    notifier = watched(systemd)
    notifier.ready("as before")
    keep(notifier, for_s=INTERVAL_S * 3)
    ready, *beats = systemd.heard()
    assert ready.startswith("READY=1")
    assert set(beats) == {"WATCHDOG=1"}
    assert 3 <= len(beats) <= 10, "once at the start, then at thirds; a busy machine delays some"
    notifier.close()


def test_a_daemon_that_is_not_well_does_not_beat(systemd: NotifySocket) -> None:
    notifier = watched(systemd)
    notifier.ready("as before")
    keep(notifier, well=lambda: False, for_s=INTERVAL_S * 3)
    assert [message for message in systemd.heard() if "WATCHDOG" in message] == []
    notifier.close()


def test_a_loop_that_stands_still_does_not_beat(systemd: NotifySocket) -> None:
    notifier = watched(systemd)

    async def within() -> None:
        task = asyncio.create_task(notifier.keep(well=lambda: True, status=lambda: ""))
        await asyncio.sleep(0)
        systemd.heard()
        blocked = asyncio.get_running_loop().time() + INTERVAL_S * 3
        while asyncio.get_running_loop().time() < blocked:
            pass
        assert systemd.heard() == []
        task.cancel()

    asyncio.run(within())
    notifier.close()


def test_the_status_is_told_when_it_changes_and_not_again(systemd: NotifySocket) -> None:
    lines = iter(["one", "two", "two", "two", *["three"] * 100])
    notifier = watched(systemd)
    notifier.ready("one")
    keep(notifier, status=lambda: next(lines), for_s=INTERVAL_S * 4)
    told = [line for message in systemd.heard() for line in message.split("\n") if line.startswith("STATUS")]
    assert told == ["STATUS=one", "STATUS=two", "STATUS=three"]
    notifier.close()


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"WATCHDOG_USEC": "10000000"},
        {"NOTIFY_SOCKET": "relative", "WATCHDOG_USEC": "10000000"},
    ],
)
def test_without_a_socket_nothing_runs(environment: dict[str, str]) -> None:
    notifier = Notifier(environment, pid=7)
    notifier.ready("unheard")
    asyncio.run(asyncio.wait_for(notifier.keep(well=lambda: True, status=lambda: ""), 5.0))
    assert notifier.watchdog_s is None


def test_a_child_that_inherited_the_variables_is_not_the_one_watched(systemd: NotifySocket) -> None:
    notifier = watched(systemd, WATCHDOG_PID="8")
    assert notifier.watchdog_s is None
    notifier.close()
    ours = watched(systemd, WATCHDOG_PID="7")
    assert ours.watchdog_s == pytest.approx(INTERVAL_S)
    ours.close()


def test_a_systemd_that_is_gone_is_no_error(systemd: NotifySocket) -> None:
    notifier = watched(systemd)
    systemd.close()
    notifier.ready("unheard")
    keep(notifier)
    notifier.close()


def test_a_systemd_that_does_not_read_is_not_waited_for(systemd: NotifySocket) -> None:
    notifier = watched(systemd)
    for _ in range(5000):
        notifier.ready("x" * 100)
    notifier.close()
