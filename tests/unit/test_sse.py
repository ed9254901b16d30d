from sparkd.sse import Message, read_messages


def test_messages_are_separated_by_empty_lines() -> None:
    lines = [b"id: 1-2", b"event: phase", b"data: {}", b"", b"data:x", b"data: y", b""]
    assert list(read_messages(lines)) == [Message("phase", b"{}", "1-2"), Message("message", b"x\ny", None)]


def test_comments_keep_the_line_open_and_say_nothing() -> None:
    assert list(read_messages([b": alive", b"", b":", b""])) == []


def test_a_message_that_was_cut_off_is_dropped() -> None:
    assert list(read_messages([b"id: 1-2", b"data: {"])) == []
