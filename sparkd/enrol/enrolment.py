"""Carrying out a plan of steps on one machine, and telling of each step as it goes."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

from sparkd.enrol.bundle import Bundle
from sparkd.enrol.host import Host, OnNode
from sparkd.enrol.probe import Probe, read_probe
from sparkd.enrol.roster import mint_node_id
from sparkd.enrol.steps import (
    CONFIG_FILE,
    STATE_FOLDER,
    TLS_FOLDER,
    UNIT_FILE,
    Cluster,
    Goal,
    Step,
    merge_config,
    plan,
    refusals,
)
from sparkd.enrol.stock import Stock
from sparkd.errors import EnrolmentFailed, SparkdError
from sparkd.records.defaults import DEFAULTS, Defaults
from sparkd.toml_text import toml_text

State = Literal["begun", "done", "would", "same", "failed", "refused"]
Tell = Callable[[str, str, State, str], None]
"""(node, step, how it stands, words)."""


class Registrar(Protocol):
    """The coordinator, as far as enrolment needs it."""

    def enrol(self, node_id: str, name: str, csr: str) -> str:
        """The certificate, PEM. Idempotent. Raises SparkdError."""

    def is_alive(self, node_id: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a person may say about all nodes of one command."""

    dry_run: bool = False
    engine: str | None = None
    """Path of a python with vLLM; found if not given."""
    rank_user: str | None = None
    """Whom ranks run as; who logged in, if not given."""

    @property
    def sections(self) -> frozenset[str]:
        """Of agent.toml: what was asked for replaces what stands there."""
        asked = {"engine": self.engine, "rank": self.rank_user}
        return frozenset(name for name, wish in asked.items() if wish)


@dataclass(frozen=True, slots=True)
class Outcome:
    name: str
    node_id: str | None = None
    probe: Probe | None = None
    failed: tuple[str, ...] = ()
    """Why it is no node now, in words; empty when it is one."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """agent.toml as it is, or would be."""


@dataclass(frozen=True, slots=True)
class Errand:
    """What all machines of one command share."""

    cluster: Cluster
    registrar: Registrar
    stock: Stock
    wishes: Wishes
    tell: Tell
    limits: Defaults = DEFAULTS


class Enrolment:
    """One machine. Nothing is changed before everything is known: refusals, missing wheels."""

    def __init__(self, host: Host, errand: Errand) -> None:
        self._host = host
        self._errand = errand
        self._cluster = errand.cluster

    def run(self) -> Outcome:
        """Raises nothing: what failed is told, and is in the outcome, and stops no other machine."""
        name = self._host.name
        outcome = Outcome(name)
        step = "probe"
        try:
            self._say(step, "begun", "")
            with self._host.open() as node:
                probe = self._probe(node)
                outcome = replace(outcome, probe=probe)
                self._say(step, "done", describe(probe))
                bundle, missing = self._errand.stock.bundle(probe)
                if why := (
                    *self._errand.stock.twin(name, probe),
                    *refusals(probe, name, self._cluster, missing),
                ):
                    for reason in why:
                        self._say("refused", "refused", reason)
                    return replace(outcome, failed=why)
                assert bundle is not None  # noqa: S101  without a missing wheel there is one
                goal = self._goal(node, probe, bundle)
                steps = plan(probe, goal, time.time())
                config = merge_config(probe.agent.config or {}, goal.config, goal.asked)
                outcome = replace(outcome, config=config, node_id=goal.config["node"]["id"])
                work = _Work(node, goal, probe, bundle, self._errand)
                for one in steps:
                    step = one.name
                    self._take(one, work)
        except Exception as error:  # noqa: BLE001  a fault of ours on one machine is told like any other
            if not isinstance(error, SparkdError):
                error = EnrolmentFailed(f"a fault of sparkd's own: {type(error).__name__}: {error}")
            words = str(error).removeprefix(f"{name}: ")
            self._say(step, "failed", words)
            return replace(outcome, failed=(f"{step}: {words}",))
        return outcome

    def _take(self, step: Step, work: "_Work") -> None:
        if step.done:
            self._say(step.name, "same", "is done")
        elif self._errand.wishes.dry_run:
            for change in step.changes:
                self._say(step.name, "would", change)
        else:
            self._say(step.name, "begun", "")
            self._say(step.name, "done", work.do(step))

    def _probe(self, node: OnNode) -> Probe:
        answer = node.ask("probe", home=node.home, urls=[_host_port(url) for url in self._cluster.urls])
        return read_probe(self._host.name, answer)

    def _goal(self, node: OnNode, probe: Probe, bundle: Bundle) -> Goal:
        known = probe.agent.node_id
        node_id = known if known and known not in self._cluster.revoked else mint_node_id()
        wishes = self._errand.wishes
        who = {"id": node_id, "name": self._host.name}
        return Goal(
            self._host.name,
            bundle.folder,
            bundle.size,
            self._errand.stock.unit,
            self._cluster,
            config_of(who, node.user, probe, self._cluster, wishes),
            wishes.sections,
        )

    def _say(self, step: str, state: State, words: str) -> None:
        self._errand.tell(self._host.name, step, state, words)


def config_of(
    who: Mapping[str, str], user: str, probe: Probe, cluster: Cluster, wishes: Wishes
) -> dict[str, dict[str, Any]]:
    """agent.toml for a node, as far as it is ours or was found there. `who`: id and name."""
    node: dict[str, Any] = {**who, "address": probe.address or "127.0.0.1"}
    sections: dict[str, dict[str, Any]] = {
        "node": node,
        "coordinator": {
            "urls": list(cluster.urls),
            "holder": cluster.holder,
            "identity": TLS_FOLDER,
        },
        "state": {"dir": STATE_FOLDER, "socket": "/run/sparkd/agent/agent.sock"},
    }
    python = wishes.engine or next((engine.python for engine in probe.engines), None)
    if python:
        sections["engine"] = {"default": {"python": python}}
    if probe.model_roots:
        sections["models"] = {"roots": list(probe.model_roots)}
    if rank_user := wishes.rank_user or _rank_user(user, probe):
        sections["rank"] = {"user": rank_user}
    return sections


def _rank_user(user: str, probe: Probe) -> str | None:
    """Who logged in; for root the owner of the engine. Ranks never run as root unasked."""
    owners = (engine.owner for engine in probe.engines)
    return user if user != "root" else next((owner for owner in owners if owner not in ("", "root")), None)


@dataclass(frozen=True, slots=True)
class _Work:
    """The steps, each by the name of a method. Words for people come back."""

    node: OnNode
    goal: Goal
    probe: Probe
    bundle: Bundle
    errand: Errand

    def do(self, step: Step) -> str:
        done: str = getattr(self, step.name)()
        return done

    def copy(self) -> str:
        self.node.ask("stage", self.bundle.blob, folder=self.bundle.folder)
        return f"{self.bundle.files} files, {len(self.bundle.blob) / 1e6:.1f} MB sent"

    def identity(self) -> str:
        known = self.probe.agent.node_id
        proposed = self.goal.config["node"]["id"]
        answer = self.node.ask("identity", proposed=proposed, replace=known)
        return f"id {answer['node_id']}"

    def certificate(self) -> str:
        csr = self.node.ask("request_certificate")["csr"]
        pem = self.errand.registrar.enrol(self.goal.config["node"]["id"], self.goal.name, csr)
        self.node.ask("write", name=f"{TLS_FOLDER}/ca.crt".lstrip("/"), text=self.goal.cluster.authority)
        self.node.ask("write", name=f"{TLS_FOLDER}/node.crt".lstrip("/"), text=pem)
        return "key made on the node, certificate signed here"

    def config(self) -> str:
        merged = merge_config(self.probe.agent.config or {}, self.goal.config, self.goal.asked)
        self.node.ask("write", name=CONFIG_FILE.lstrip("/"), text=toml_text(merged))
        return CONFIG_FILE

    def unit(self) -> str:
        self.node.ask("write", name=UNIT_FILE.lstrip("/"), text=self.goal.unit)
        return UNIT_FILE

    def link(self) -> str:
        self.node.ask("link", folder=self.goal.folder)
        return f"current -> {self.goal.folder}"

    def start(self) -> str:
        self.node.ask("start", restart=self.probe.agent.active)
        return "restarted" if self.probe.agent.active else "enabled and started"

    def verify(self) -> str:
        """Until the coordinator has heard from it. Raises EnrolmentFailed with the agent's own words."""
        limits = self.errand.limits
        end = time.monotonic() + limits.enrol_verify_s
        while time.monotonic() < end:
            if self.errand.registrar.is_alive(self.goal.config["node"]["id"]):
                return "the coordinator hears from it"
            time.sleep(limits.client_poll_s)
        said = self.node.ask("verify")
        link = said["status"].get("coordinator") or "its agent does not answer"
        log = "".join(f"\n    | {line}" for line in said["log"].splitlines()[-8:])
        raise EnrolmentFailed(
            f"not heard from within {limits.enrol_verify_s:g} s; its service is {said['active']}; {link}{log}"
        )


def describe(probe: Probe) -> str:
    """A line on what the machine is."""
    python = ".".join(map(str, probe.python))
    return f"{probe.distribution or probe.system}, {probe.machine}, Python {python}, kernel {probe.kernel}"


def _host_port(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 7071


def run_all(
    enrolments: Sequence[Enrolment],
    attend: Callable[[Callable[[], bool]], None],
    at_once: int = DEFAULTS.enrol_hosts_at_once,
) -> tuple[Outcome, ...]:
    """Side by side; one that fails stops no other. `attend` is called here, with whether there is still work
    going on, and returns when there is none: questions to a person are asked in it.

    The threads end with the process: what is under way when a person goes away ends with its connection.
    """
    outcomes: dict[int, Outcome] = {}
    room = threading.Semaphore(at_once)

    def work(number: int) -> None:
        with room:
            outcomes[number] = enrolments[number].run()

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(len(enrolments))]
    for thread in threads:
        thread.start()
    attend(lambda: any(thread.is_alive() for thread in threads))
    return tuple(outcomes[number] for number in range(len(enrolments)))
