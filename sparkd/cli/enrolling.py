"""What `sparkd init` and `sparkd nodes add|remove|upgrade` share: a person at a terminal, the coordinator."""

import getpass
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from sparkd.client import Client
from sparkd.enrol.enrolment import Enrolment, Errand, Outcome, State, Wishes, run_all
from sparkd.enrol.findings import finding_lines
from sparkd.enrol.host import Host, Place, SshHost
from sparkd.enrol.ssh import Login
from sparkd.enrol.steps import Cluster
from sparkd.enrol.stock import Stock
from sparkd.enrol.target import SshSettings
from sparkd.errors import NotReached, SparkdError, UsageError
from sparkd.paths import find_paths
from sparkd.records.defaults import DEFAULTS
from sparkd.unit_files import AGENT, unit_file

_WORDS: dict[State, str] = {
    "begun": "…",
    "done": "done",
    "would": "would change",
    "same": "nothing to do",
    "failed": "FAILED",
    "refused": "REFUSED",
}
_COLOURS = {"failed": typer.colors.RED, "refused": typer.colors.RED, "would": typer.colors.YELLOW}


class Person:
    """Reads and answers at the terminal: one line or one question at a time, whoever has something to say.

    Questions of other threads are asked by the thread that called `attend`, the main one: Ctrl-C reaches no
    other, and a password prompt must give the terminal back.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._width = max((len(name) for name in names), default=0)
        self._lock = threading.Lock()
        self._questions: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]]] = (
            queue.SimpleQueue()
        )

    def tell(self, node: str, step: str, state: State, words: str) -> None:
        if state == "begun" and step != "verify":
            return
        line = printable(f"{node:{self._width}}  {step:11}  {_WORDS[state]:13}  {words}".rstrip())
        with self._lock:
            typer.echo(typer.style(line, fg=_COLOURS.get(state)), err=True)

    def confirm(self, question: str) -> bool:
        if not sys.stdin.isatty():
            return False
        return bool(self._ask(lambda: typer.confirm(printable(question), err=True)))

    def secret(self, question: str) -> str | None:
        if not sys.stdin.isatty():
            return None
        answer = self._ask(lambda: getpass.getpass(f"{question}: ", stream=sys.stderr))
        return None if answer is None else str(answer)

    def attend(self, is_busy: Callable[[], bool]) -> None:
        """Ask what is to be asked, until there is nothing more to do."""
        while is_busy():
            with suppress(queue.Empty):
                ask, answers = self._questions.get(timeout=DEFAULTS.client_poll_s)
                with self._lock:
                    answers.put(ask())

    def _ask(self, ask: Callable[[], Any]) -> Any:
        if threading.current_thread() is threading.main_thread():
            with self._lock:
                return ask()
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._questions.put((ask, answers))
        return answers.get()


def printable(text: str) -> str:
    """What a machine says of itself may hold anything, also orders to a terminal."""
    return "".join(one if one.isprintable() or one == "\n" else "?" for one in text)


class Api:
    """The coordinator as enrolment sees it (`enrolment.Registrar`)."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def cluster(self) -> Cluster:
        known = self._client.membership()
        return Cluster(known.holder, known.agent_urls, known.authority, known.nodes, frozenset(known.revoked))

    def enrol(self, node_id: str, name: str, csr: str) -> str:
        return self._client.enrol_node(node_id, name, csr).certificate

    def is_alive(self, node_id: str) -> bool:
        return any(node.id == node_id and node.state == "alive" for node in self._client.nodes())


def find_hosts(targets: Sequence[str], person: Person, *, accept_new: bool) -> list[Host]:
    """Raises UsageError for what is no target, before anybody is called."""
    settings, login = SshSettings(Path.home()), Login(person, accept_new=accept_new)
    routes = [settings.route(target) for target in targets]
    names = [route.name for route in routes]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"named twice: {', '.join(twice)}")
    return [SshHost(route, login, person, Place()) for route in routes]


def find_stock(wheels: Path | None, *, offline: bool) -> Stock:
    folders = [wheels] if wheels else []
    unit = unit_file(AGENT).read_text(encoding="utf-8")
    return Stock(folders, find_paths().state / "wheels", unit, offline=offline)


def enrol(
    hosts: Sequence[Host], api: Api, stock: Stock, wishes: Wishes, person: Person
) -> tuple[Outcome, ...]:
    errand = Errand(api.cluster(), api, stock, wishes, person.tell)
    return run_all([Enrolment(host, errand) for host in hosts], person.attend)


def name_of(target: str) -> str:
    """The node's name in `[USER@]HOST[:PORT]`."""
    return target.rpartition("@")[2].partition(":")[0]


@dataclass(frozen=True, slots=True)
class Removal:
    lines: tuple[str, ...]
    is_clean: bool
    """As far as could be: a dead machine keeps what is on it."""


def remove(host: Host, client: Client, *, force: bool) -> Removal:
    """First the certificate, then what is on the machine. What is refused changes nothing."""
    name = host.name
    try:
        client.remove_node(name)
        lines = [f"{name}: removed; its certificate counts no more"]
    except SparkdError as error:
        return Removal((f"{name}: not removed: {error}",), is_clean=False)
    try:
        with host.open() as node:
            done = node.ask("uninstall", force=force)
    except NotReached as error:
        lines.append(f"{name}: {error}")
        word = "`sudo sparkd-agent uninstall` there takes it off"
        lines.append(f"  stays    the agent, which is refused when {name} is back; {word}")
        return Removal(tuple(lines), is_clean=True)
    except SparkdError as error:
        lines.append(f"{name}: the agent stays on it: {error}")
        lines.append("  it is refused from now on; `sudo sparkd-agent uninstall` there takes it off")
        return Removal(tuple(lines), is_clean=False)
    lines += [f"  removed  {word}" for word in done["removed"]]
    lines += [f"  stays    {word}" for word in done["left"]]
    return Removal(tuple(lines), is_clean=True)


def summary_lines(outcomes: Sequence[Outcome], *, dry_run: bool) -> list[str]:
    """What was found, who is a node now, who is not and why, and the next command."""
    good = [outcome for outcome in outcomes if not outcome.failed]
    configs = {one.name: one.config for one in outcomes}
    lines = finding_lines({one.name: one.probe for one in outcomes if one.probe}, configs)
    for outcome in outcomes:
        lines += [f"{outcome.name} is no node: {why}" for why in outcome.failed]
    names = ",".join(outcome.name for outcome in good)
    if dry_run:
        lines.append("nothing was changed")
    elif good:
        lines.append(f"next: sparkd profiles list, then sparkd up PROFILE --nodes {names}")
    if len(good) < len(outcomes):
        lines.append("once cured, the same command goes on where it stopped")
    return [printable(line) for line in lines]
