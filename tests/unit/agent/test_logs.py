"""The reader of a rank's log over segments laid out by hand."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd_agent.logs import LogLine, RankLog, last_words, parse_line


def stamped(number: int, text: str = "line") -> bytes:
    return f"{number}000000000 {number}500000000 1 {text} {number}\n".encode()


def lay_out(folder: Path, *segments: bytes, start: int = 0) -> RankLog:
    for segment in segments:
        (folder / f"{start:020d}").write_bytes(segment)
        start += len(segment)
    return RankLog(folder)


def test_lines_are_read_over_segments_without_loss(tmp_path: Path) -> None:
    segments = [b"".join(stamped(i) for i in range(j, j + 10)) for j in (0, 10, 20)]
    log = lay_out(tmp_path, *segments)
    offset, texts = 0, []
    while (part := log.read(offset, 100)).data:
        assert part.offset == offset
        assert part.skipped_bytes == 0
        texts += [line.text for line in part.lines]
        offset = part.next_offset
    assert texts == [f"line {i}" for i in range(30)]
    assert offset == log.size == sum(map(len, segments))


def test_what_rotation_removed_is_counted(tmp_path: Path) -> None:
    log = lay_out(tmp_path, stamped(1), stamped(2), start=1000)
    part = log.read(10, 1 << 20)
    assert (part.offset, part.skipped_bytes) == (1000, 990)
    assert part.data == stamped(1)


def test_a_flood_is_followed_at_its_tail(tmp_path: Path) -> None:
    body = b"".join(stamped(i) for i in range(1000))
    log = lay_out(tmp_path, body)
    part = log.follow(0, 200)
    assert len(part.data) <= 200
    assert part.data.endswith(stamped(999))
    assert part.skipped_bytes == part.offset == len(body) - len(part.data)
    assert len(part.lines) == part.data.count(b"\n")


def test_a_line_that_is_still_being_written_waits(tmp_path: Path) -> None:
    log = lay_out(tmp_path, stamped(1) + stamped(2)[:10])
    part = log.read(0, 1 << 20)
    assert part.data == stamped(1)
    assert log.read(part.next_offset, 1 << 20).data == b""


def test_a_line_longer_than_the_limit_comes_whole(tmp_path: Path) -> None:
    log = lay_out(tmp_path, stamped(1, "x" * 1000) + stamped(2))
    assert log.read(0, 64).data == stamped(1, "x" * 1000)


@pytest.mark.parametrize("count", [0, 1, 7, 30, 100])
def test_the_last_lines(tmp_path: Path, count: int) -> None:
    log = lay_out(tmp_path, *[b"".join(stamped(i) for i in range(j, j + 10)) for j in (0, 10, 20)])
    expected = [f"line {i}" for i in range(30)][max(0, 30 - count) :] if count else []
    assert [line.text for line in log.last(count)] == expected


def test_the_last_lines_of_a_long_log_need_not_all_of_it(tmp_path: Path) -> None:
    log = lay_out(tmp_path, b"".join(stamped(i, "y" * 100) for i in range(5000)))
    assert [line.mono for line in log.last(3)] == [4997.0, 4998.0, 4999.0]


def test_no_log_yet(tmp_path: Path) -> None:
    log = RankLog(tmp_path / "none")
    assert (log.size, log.last(5), log.read(0, 10).data) == (0, [], b"")


def test_a_line_is_parsed_with_both_clocks() -> None:
    assert parse_line(b"1500000000 1700000000250000000 2 a  b ") == LogLine(
        1.5, 1700000000.25, "stderr", "a  b "
    )
    assert parse_line(b"1 2 ! [sparkd: x]") == LogLine(1e-9, 2e-9, "shim", "[sparkd: x]")


@given(st.binary(max_size=60))
def test_nothing_in_a_log_breaks_the_parser(raw: bytes) -> None:
    line = parse_line(raw)
    assert line is None or isinstance(line.text, str)


def line(text: str) -> LogLine:
    return LogLine(0.0, 0.0, "stdout", text)


def test_what_explains_an_end_comes_first_and_the_last_lines_after_it() -> None:
    texts = [
        "Worker proc VllmWorker-1 died unexpectedly (exit code: -9)",
        *[f"chatter {i}" for i in range(50)],
        "ValueError: something broke",
        *[f"more chatter {i}" for i in range(50)],
    ]
    assert last_words(map(line, texts), count=4) == (
        "Worker proc VllmWorker-1 died unexpectedly (exit code: -9)",
        "ValueError: something broke",
        "more chatter 48",
        "more chatter 49",
    )


def test_a_long_trace_of_who_only_heard_of_it_does_not_hide_what_was_raised_first() -> None:
    frame = '(EngineCore pid=7) ERROR 11-30 14:53:14 [core.py:1510]   File "x.py", line {}, in step'
    texts = [
        "(Worker pid=8) ERROR 11-30 14:53:10 [multiproc_executor.py:9] ImportError: no such module",
        *[frame.format(i) for i in range(200)],
        "(EngineCore pid=7) ERROR 11-30 14:53:14 [core.py:1510] Exception: WorkerProc initialization failed",
    ]
    assert "ImportError: no such module" in last_words(map(line, texts), count=3)[0]


def test_lines_are_cut_and_few() -> None:
    told = last_words([line(f"step {i} " + "x" * 900) for i in range(50)] + [line("  ")], count=2, width=20)
    assert [text[:7] for text in told] == ["step 48", "step 49"]
    assert {len(text) for text in told} == {20}
