"""What a node reads off a rank's spec, and the stand-in for one that is lost."""

from pathlib import Path

from sparkd.errors import UsageError
from sparkd.records.intent import Descriptor, Intent
from sparkd.records.names import parse_rank_name
from sparkd.records.rank import Address, RankSpec


def checkpoint_of(spec: RankSpec) -> Path | None:
    """`serve MODEL …` (see `plan`): the folder of the checkpoint, if it is one."""
    return Path(spec.args[1]) if len(spec.args) > 1 and spec.args[0] == "serve" else None


def interface_of(spec: RankSpec) -> str | None:
    """By which it meets the others (see `sparkd.fabric`), loopback aside."""
    name = spec.env.get("GLOO_SOCKET_IFNAME")
    return name if name != "lo" else None


def unknown_spec(name: str) -> RankSpec:
    """A stand-in for the spec of a rank whose ledger row is lost: enough to end it and to name it."""
    parsed = parse_rank_name(name)
    if parsed is None:
        raise UsageError(f"{name} is no rank's name")
    nothing = Intent(profile_name="", profile={})
    descriptor = Descriptor(parsed.deployment, nothing, 0, parsed.generation, (), 0)
    return RankSpec(
        name=name,
        deployment=parsed.deployment,
        generation=parsed.generation,
        rank=parsed.rank,
        ranks=0,
        runtime="process",
        engine="",
        args=(),
        env={},
        rendezvous=Address("", 0),
        descriptor=descriptor,
    )
