"""The environment of a rank, each variable with its origin: what was chosen, and what people gave instead."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sparkd.engine.environment import diverts, is_secret_name
from sparkd.engine.plugin import MODS_VARIABLE, ModRequest, encode_requests
from sparkd.fabric.choice import Choice, Seat, variables
from sparkd.fabric.nccl_conf import judge_settings
from sparkd.fabric.pins import Pin, wrong
from sparkd.profile.schema import Profile
from sparkd.records.plan import Origin, PlannedEnv
from sparkd.records.report import NodeFacts
from sparkd.records.verdict import Severity, Verdict

_QUIET_ENV: Final = {
    "HF_HUB_OFFLINE": ("1", "every node serves the files that were compared"),
    "VLLM_NO_USAGE_STATS": ("1", "no telemetry"),
    "DO_NOT_TRACK": ("1", "no telemetry"),
}
_OF_NODE: Final = "[rank.env] of the node"


@dataclass(frozen=True, slots=True)
class RankEnvironment:
    node: str
    """Its name."""
    values: tuple[PlannedEnv, ...]
    masked: tuple[str, ...] = ()
    """Variables of the node's own [rank.env] that must not reach the rank."""
    verdicts: tuple[Verdict, ...] = ()


def rank_environment(
    node: NodeFacts, profile: Profile, origins: Mapping[str, str], choice: Choice, seat: Seat
) -> RankEnvironment:
    """Later wins: sparkd and fabric, the profile, the node's own `[rank.env]`.

    An empty value takes a variable away, but nothing that was chosen: NCCL reads an empty index as 0. What
    names an interface, a device or an index is verified on this node first, and what would lead ranks past
    each other is kept from them.
    """
    found: dict[str, PlannedEnv] = {}
    masked: list[str] = []
    verdicts: list[Verdict] = []

    def put(name: str, value: str, origin: Origin, note: str = "") -> None:
        found[name] = PlannedEnv(name, value, origin, note)

    def put_verified(name: str, value: str, origin: Origin, note: str, giver: str) -> bool:
        if not value:
            if name in found and found[name].origin != "fabric":
                del found[name]
            return False
        verdict = wrong(Pin(name, value, giver), seat, choice)
        if verdict is None:
            put(name, value, origin, note)
        else:
            verdicts.append(verdict)
        return verdict is None

    for name, value, note in variables(choice, seat):
        # What a node's configuration says of its own address is its word, not a choice of ours.
        origin: Origin = "node" if seat.pinned and node.fabric and name == "VLLM_HOST_IP" else "fabric"
        put(name, value, origin, note)
    if requires_rdma(profile) and choice.topology != "alone":
        put("NCCL_DEBUG", "INFO", "fabric", "it says which transport it took")
        put("NCCL_DEBUG_SUBSYS", "INIT,NET", "fabric", "no more than that")
    for variable, (value, note) in _QUIET_ENV.items():
        put(variable, value, "default", note)
    if profile.mods:
        requests = [ModRequest(m.name, m.required, m.unknown, m.settings) for m in profile.mods]
        origin, note = origin_of(origins, "mods")
        put(
            MODS_VARIABLE,
            encode_requests(requests),
            origin,
            with_reason(origin, note, "what its engine loads"),
        )
    for variable, value in profile.env.items():
        origin, note = origin_of(origins, f"env.{variable}")
        said = with_reason(origin, note, profile.why.get(variable, ""))
        put_verified(variable, value, origin, said, "the profile" if origin == "profile" else note)
    for variable, value in node.rank_env.items():
        reason = diverts(variable)
        if reason is not None:
            masked.append(variable)
            verdicts.append(_diverted(node, variable, reason))
        elif is_secret_name(variable) and value:
            # Set by the agent from its own configuration; its value is nobody else's business.
            put(variable, "(hidden)", "node", "set by the node")
        elif not put_verified(variable, value, "node", "", _OF_NODE):
            masked.append(variable)
    for judged in judge_settings({name: one.value for name, one in found.items()}, seat, choice):
        verdicts.append(judged.verdict)
        if judged.instead is not None:
            put(*judged.instead, "fabric", "over what nccl.conf says")
    gone = tuple(name for name in masked if name not in found)
    return RankEnvironment(node.name, tuple(found.values()), gone, tuple(verdicts))


def requires_rdma(profile: Profile) -> bool:
    return profile.fabric.rdma == "required"


def _diverted(node: NodeFacts, name: str, reason: str) -> Verdict:
    return Verdict(
        "ENV_DIVERTS",
        Severity.NOTE,
        f"{name} is kept from the ranks on {node.name}: {reason}",
        evidence=f"{name} in {_OF_NODE}",
        remedy=f"take {name} out of [rank.env] in its agent.toml",
        node=node.id,
    )


def is_nodes_secret(variable: PlannedEnv) -> bool:
    return variable.origin == "node" and is_secret_name(variable.name)


def origin_of(origins: Mapping[str, str], *paths: str) -> tuple[Origin, str]:
    return last_say([origins[path] for path in paths if origins.get(path, "default") != "default"])


def with_reason(origin: Origin, note: str, why: str) -> str:
    """A profile's reason is one for its own value, not for what somebody put in its place."""
    if origin not in {"profile", "variant"}:
        return note
    return f"{note}: {why}" if note and why else note or why


def last_say(labels: Sequence[str]) -> tuple[Origin, str]:
    """The plan's word for the label that had the last say, and the label itself where it says more."""
    rank: tuple[tuple[str, Origin], ...] = (("-- ", "argument"), ("--set ", "set"), ("variant ", "variant"))
    for prefix, origin in rank:
        for label in reversed(labels):
            if label.startswith(prefix):
                return origin, label
    return "profile", ""
