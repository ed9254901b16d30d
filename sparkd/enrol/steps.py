"""The pure core of enrolment: from what a node is and what it shall be, to steps. No I/O.

    probe ──> refusals (nothing is changed)
      └─────> copy ─> identity ─> certificate ─> config ─> unit ─> link ─> start ─> verify

A step is done, or it says what it changes. Doing a step that is done changes nothing, so an enrolment that
broke off anywhere is resumed by asking for it again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from cryptography import x509

from sparkd.enrol.probe import Probe
from sparkd.enrol.wheels import MACHINES, PYTHONS
from sparkd.records.defaults import DEFAULTS, MIB

StepName = Literal["copy", "identity", "certificate", "config", "unit", "link", "start", "verify"]

AGENT_FOLDER: Final = "/opt/sparkd"
UNIT_FILE: Final = "/etc/systemd/system/sparkd-agent.service"
CONFIG_FILE: Final = "/etc/sparkd/agent.toml"
STATE_FOLDER: Final = "/var/lib/sparkd/agent"
"""All that the agent may write, also its certificate when it renews it: /etc is read-only for its service."""
TLS_FOLDER: Final = f"{STATE_FOLDER}/tls"
ID_FILE: Final = f"{STATE_FOLDER}/node-id"


@dataclass(frozen=True, slots=True)
class Cluster:
    """What every node of this coordinator gets: holder, addresses, the authority's certificate (PEM)."""

    holder: str
    urls: tuple[str, ...]
    authority: str
    nodes: Mapping[str, str]
    """Enrolled: id -> name."""
    revoked: frozenset[str] = frozenset()
    """Ids of nodes that were removed."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What one node shall be."""

    name: str
    folder: str
    """Of its bundle."""
    size: int
    """Of its bundle, in bytes."""
    unit: str
    cluster: Cluster
    config: Mapping[str, Mapping[str, Any]]
    """Sections of agent.toml that are ours; what else stands in the file is the owner's and stays."""
    asked: frozenset[str] = frozenset()
    """Sections that a person asked for in this command: they replace what stands there."""


@dataclass(frozen=True, slots=True)
class Step:
    name: StepName
    done: bool
    changes: tuple[str, ...] = ()
    """What doing it changes on the node, in words; empty where nothing changes."""


def refusals(
    probe: Probe, name: str, cluster: Cluster, missing_wheels: Sequence[str] = ()
) -> tuple[str, ...]:
    """Why nothing may be begun on this node, each with what to do. All of them, not the first."""
    found: list[str] = []
    if probe.system != "Linux" or probe.machine not in MACHINES:
        found.append(f"{probe.system} on {probe.machine}: a node is Linux on {' or '.join(MACHINES)}")
    elif probe.libc[0] != "glibc":
        found.append(f"its C library is {probe.libc[0] or 'unknown'}: there are wheels for glibc only")
    if probe.python[:2] not in PYTHONS:
        version = ".".join(map(str, probe.python))
        first, last = PYTHONS[0], PYTHONS[-1]
        found.append(
            f"its {probe.python_path} is {version}; an agent runs on {first[0]}.{first[1]} to "
            f"{last[0]}.{last[1]}"
        )
    elif probe.missing_modules:
        found.append(
            f"its Python has no {', '.join(probe.missing_modules)}: install python3 and not python3-minimal"
        )
    if not probe.has_systemd:
        found.append("no systemd runs there: an agent on a node is a service")
    if not probe.has_openssl:
        found.append("it has no `openssl`, with which a node makes its own key: install openssl")
    if not probe.is_root:
        found.append("we are not root there: log in as root, or as somebody who may use sudo")
    if probe.free_bytes < DEFAULTS.enrol_disk_bytes:
        free, wanted = probe.free_bytes // MIB, DEFAULTS.enrol_disk_bytes // MIB
        found.append(f"{AGENT_FOLDER} has {free} MiB free; {wanted} MiB are needed")
    if probe.agent.config == {}:
        found.append(f"its {CONFIG_FILE} is empty or no TOML: correct it, or move it away")
    holder = probe.agent.holder
    if holder is not None and holder != cluster.holder:
        where = f" at {', '.join(probe.agent.urls)}" if probe.agent.urls else ""
        found.append(
            f"it belongs to another coordinator, {holder}{where} (ours is {cluster.holder}): remove it there "
            "with `sparkd nodes remove`, or run `sudo sparkd-agent uninstall` on it"
        )
    found += _name_taken(probe, name, cluster)
    if cluster.urls and len(probe.unreachable) == len(cluster.urls):
        found.append(
            f"it cannot reach the coordinator ({'; '.join(probe.unreachable)}): agents dial out, so port "
            "7071 must be open from there to here"
        )
    found += [f"no wheel of {missing}" for missing in missing_wheels]
    return tuple(found)


def _name_taken(probe: Probe, name: str, cluster: Cluster) -> list[str]:
    mine = probe.agent.node_id
    known_as = cluster.nodes.get(mine) if mine else None
    if known_as not in (None, name):
        return [f"this machine is enrolled as {known_as} already: use that name, or remove {known_as} first"]
    if known_as is None and name in cluster.nodes.values():
        first = f"`sparkd nodes remove {name}` first"
        return [f"a node called {name} is enrolled, and this is not it (was it set up anew?): {first}"]
    return []


def plan(probe: Probe, goal: Goal, now: float) -> tuple[Step, ...]:
    """All steps, in order; `now` in seconds since 1970. `verify` is never done before: only the agent and
    its coordinator can say.
    """
    agent = probe.agent
    steps = [
        _step(
            "copy",
            goal.folder in agent.folders,
            f"{AGENT_FOLDER}/{goal.folder}: {goal.size / MIB:.1f} MiB unpacked",
        ),
        _step(
            "identity",
            _has_identity(probe, goal.cluster),
            f"{ID_FILE}: a new id" if agent.node_id is None else f"{ID_FILE}: a fresh id",
        ),
        _certificate(probe, goal, now),
        _step(
            "config",
            config_is(agent.config, goal.config, goal.asked),
            f"{CONFIG_FILE}: {', '.join(goal.config)}",
        ),
        _step("unit", agent.unit == goal.unit, f"{UNIT_FILE}: the agent as a service"),
        _step(
            "link",
            agent.current == goal.folder,
            f"{AGENT_FOLDER}/current -> {goal.folder}; /usr/local/bin/sparkd-agent",
        ),
    ]
    settled = agent.active and agent.enabled and all(step.done for step in steps)
    change = (
        "sparkd-agent.service: restarted" if agent.active else "sparkd-agent.service: enabled and started"
    )
    return (*steps, _step("start", settled, change), Step("verify", done=False))


def config_is(
    config: Mapping[str, Any] | None,
    wanted: Mapping[str, Mapping[str, Any]],
    asked: frozenset[str] = frozenset(),
) -> bool:
    """Whether a file holds all that is ours; of the owner's sections only whether they are there."""
    return config is not None and merge_config(config, wanted, asked) == dict(config)


def merge_config(
    config: Mapping[str, Any],
    wanted: Mapping[str, Mapping[str, Any]],
    asked: frozenset[str] = frozenset(),
) -> dict[str, dict[str, Any]]:
    """The file as it shall be: `node`, `coordinator` and `state` are ours, key by key. Of everything else the
    owner's word stays, and what was found counts only where the owner said nothing; `asked` are sections that
    a person asked for just now.
    """
    merged = {name: dict(section) for name, section in config.items() if isinstance(section, dict)}
    for name, section in wanted.items():
        mine = merged.get(name, {})
        if name in {"coordinator", "state", *asked}:
            merged[name] = {**mine, **section}
        elif name == "node":
            own = {key: section[key] for key in ("id", "name") if key in section}
            merged[name] = {**section, **mine, **own}
        else:
            merged.setdefault(name, dict(section))
    return merged


def _step(name: StepName, done: bool, change: str) -> Step:
    return Step(name, done, () if done else (change,))


def _has_identity(probe: Probe, cluster: Cluster) -> bool:
    node_id = probe.agent.node_id
    return node_id is not None and node_id not in cluster.revoked


def _certificate(probe: Probe, goal: Goal, now: float) -> Step:
    """Done while the node has a key and a certificate of this authority, for an id that is enrolled here,
    with a good part of its life before it: one that ran out is what brings people back to `nodes add`.
    """
    agent = probe.agent
    done = (
        agent.key
        and agent.certificate is not None
        and _is_fresh(agent.certificate, now)
        and agent.authority == goal.cluster.authority
        and _has_identity(probe, goal.cluster)
        and goal.cluster.nodes.get(agent.node_id or "") == goal.name
    )
    key = () if agent.key else (f"{TLS_FOLDER}/node.key: made on the node, it stays there",)
    files = (f"{TLS_FOLDER}/node.crt and ca.crt: signed by this coordinator",)
    return Step("certificate", done, () if done else (*key, *files))


def _is_fresh(pem: str, now: float) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate(pem.encode())
    except ValueError:
        return False
    begin = certificate.not_valid_before_utc.timestamp()
    end = certificate.not_valid_after_utc.timestamp()
    return begin <= now <= begin + (end - begin) * DEFAULTS.certificate_renew_share
