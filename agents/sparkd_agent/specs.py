"""What a node reads off a rank's spec, and the stand-in for one that is lost."""

from pathlib import Path

from sparkd.detect.fabric import GidUse
from sparkd.errors import UsageError
from sparkd.records.fabric import ROCE_V1, ROCE_V2
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


def gid_of(spec: RankSpec) -> GidUse | None:
    """Which entry it was given, or finds by its address (see `sparkd.fabric`); None without RDMA."""
    if not spec.rdma:
        return None
    given = spec.env.get("NCCL_IB_GID_INDEX", "")
    is_v1 = spec.env.get("NCCL_IB_ROCE_VERSION_NUM") == "1"
    return GidUse(
        spec.env.get("VLLM_HOST_IP", ""),
        int(given) if given.isascii() and given.isdigit() else None,  # NCCL's -1 is none
        ROCE_V1 if is_v1 else ROCE_V2,
    )


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
