import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from sparkd.cli.enrolling import Person, find_hosts, name_of, printable, remove, summary_lines
from sparkd.enrol.enrolment import Outcome
from sparkd.enrol.host import Host, OnNode
from sparkd.errors import Conflict, EnrolmentFailed, NotReached, SparkdError, UsageError
from tests.unit.enrol.test_steps import FRESH


@dataclass
class Coordinator:
    """A client that only removes."""

    error: SparkdError | None = None
    removed: list[str] = field(default_factory=list)

    def remove_node(self, name: str) -> None:
        if self.error:
            raise self.error
        self.removed.append(name)


class Talk:
    def __init__(self, answer: dict[str, Any] | EnrolmentFailed) -> None:
        self.answer = answer
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def ask(self, verb: str, _blob: bytes = b"", **args: Any) -> dict[str, Any]:
        self.asked.append((verb, args))
        if isinstance(self.answer, EnrolmentFailed):
            raise self.answer
        return self.answer


class Machine(Host):
    def __init__(self, name: str, answer: dict[str, Any] | EnrolmentFailed, away: str = "") -> None:
        self.name = name
        self.talk = Talk(answer)
        self.away = away

    @contextmanager
    def open(self) -> Iterator[OnNode]:
        if self.away:
            raise NotReached(self.away)
        yield OnNode(self.talk, "ann", "/home/ann")  # type: ignore[arg-type]


def removal(machine: Machine, coordinator: Coordinator, *, force: bool = False) -> tuple[str, bool]:
    done = remove(machine, coordinator, force=force)  # type: ignore[arg-type]
    return "\n".join(done.lines), done.is_clean


def test_a_removed_node_tells_what_went_and_what_stays() -> None:
    machine = Machine("spark-4", {"removed": ["/opt/sparkd/current"], "left": ["checkpoints in /srv"]})
    coordinator = Coordinator()
    said, clean = removal(machine, coordinator, force=True)
    assert clean
    assert coordinator.removed == ["spark-4"]
    assert machine.talk.asked == [("uninstall", {"force": True})]
    assert "removed  /opt/sparkd/current" in said
    assert "stays    checkpoints in /srv" in said


def test_a_dead_node_is_removed_and_what_is_on_it_is_said() -> None:
    coordinator = Coordinator()
    said, clean = removal(Machine("spark-4", {}, away="spark-4: no route to host"), coordinator)
    assert clean
    assert coordinator.removed == ["spark-4"]
    assert "refused when spark-4 is back" in said
    assert "no route to host" in said


def test_what_the_coordinator_refuses_touches_no_machine() -> None:
    machine = Machine("spark-4", {})
    said, clean = removal(machine, Coordinator(Conflict("glm has a rank on spark-4")))
    assert not clean
    assert machine.talk.asked == []
    assert "not removed: glm has a rank" in said


def test_an_agent_that_cannot_be_taken_off_is_no_clean_end() -> None:
    coordinator = Coordinator()
    said, clean = removal(Machine("spark-4", EnrolmentFailed("ranks live on this node")), coordinator)
    assert not clean
    assert coordinator.removed == ["spark-4"]
    assert "the agent stays on it: ranks live on this node" in said


def test_the_summary_says_who_is_a_node_who_is_not_and_what_comes_next() -> None:
    good = Outcome("spark-1", "id-1", FRESH)
    bad = Outcome("spark-2", failed=("probe: no connection",))
    said = "\n".join(summary_lines([good, bad], dry_run=False))
    assert "spark-2 is no node: probe: no connection" in said
    assert "sparkd up PROFILE --nodes spark-1" in said
    assert "goes on where it stopped" in said
    assert "next:" not in "\n".join(summary_lines([bad], dry_run=False))
    assert "nothing was changed" in summary_lines([good], dry_run=True)


def test_what_a_machine_says_gives_no_orders_to_a_terminal() -> None:
    assert printable("a\x1b[2Jb\r\x07c\nd é") == "a?[2Jb??c\nd é"
    evil = Outcome("spark-1", failed=("verify: \x1b]0;owned\x07",))
    assert "\x1b" not in "\n".join(summary_lines([evil], dry_run=False))


def test_a_name_twice_is_refused_before_anybody_is_called(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    with pytest.raises(UsageError, match="named twice: a"):
        find_hosts(["a", "b", "ann@a"], Person([]), accept_new=False)


@pytest.mark.parametrize("target", ["spark-1", "ann@spark-1", "ann@spark-1:2222", "spark-1:22"])
def test_the_name_in_a_target(target: str) -> None:
    assert name_of(target) == "spark-1"


def test_questions_of_other_threads_are_asked_by_the_one_that_attends() -> None:
    person = Person(["a"])
    asked_in: list[threading.Thread] = []
    heard: list[object] = []

    def question() -> str:
        asked_in.append(threading.current_thread())
        return "an answer"

    def work() -> None:
        heard.append(person._ask(question))

    thread = threading.Thread(target=work)
    thread.start()
    person.attend(thread.is_alive)
    thread.join()
    assert heard == ["an answer"]
    assert asked_in == [threading.current_thread()]


def test_without_a_terminal_there_is_nobody_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("yes\nsecret\n"))
    person = Person([])
    assert person.confirm("Is that the machine?") is False
    assert person.secret("Password") is None
