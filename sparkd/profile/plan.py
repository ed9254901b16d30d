"""A profile applied to nodes: the argv and environment of every rank, each value with its origin.

Pure: the same intent, facts and numbers give the same plan.
"""

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from sparkd.engine import flags
from sparkd.engine.releases import variable_unknown
from sparkd.engine.transport import asks_for_sockets
from sparkd.errors import UsageError
from sparkd.fabric.choice import Choice, choose
from sparkd.fabric.findings import findings, unmet
from sparkd.fabric.member import members_of
from sparkd.fabric.pins import own_address
from sparkd.profile.check import profile_of
from sparkd.profile.environment import (
    RankEnvironment,
    is_nodes_secret,
    last_say,
    origin_of,
    rank_environment,
    requires_rdma,
    with_reason,
)
from sparkd.profile.images import image_verdicts, in_image, pinned
from sparkd.profile.memory import memory_lines, memory_notes, need_bytes
from sparkd.profile.models import model_paths
from sparkd.profile.references import with_paths
from sparkd.profile.schema import CanaryCheck, Completion, Profile
from sparkd.profile.verdicts import engine_of, require_engines, verdicts_of
from sparkd.records.defaults import DEFAULTS, GIB
from sparkd.records.image import ImageReport
from sparkd.records.intent import Descriptor, Intent, files_folder
from sparkd.records.names import RankName
from sparkd.records.plan import Origin, Plan, PlannedArg, RankPlan
from sparkd.records.rank import Address, Canary, MemoryNeed, PinnedImage, Probe, RankSpec, RuntimeName
from sparkd.records.report import NodeFacts
from sparkd.records.verdict import Verdict

API_KEY_VARIABLE: Final = "VLLM_API_KEY"
_ALLOWS_SOCKETS: Final = "TRANSPORT_SOCKETS"
"""With `--force`: a fall of NCCL to sockets is borne."""

_QUIET_FLAG: Final = "disable-access-log-for-endpoints"
"""vLLM 0.16 and later. Without it rank 0's log gets a line for every look at its counters."""
_QUIET_PATHS: Final = "/health,/metrics"


def needs_api_key(intent: Intent, nodes: Sequence[NodeFacts]) -> bool:
    """Whether clients of this deployment must show a key: `api.key: generate`, and not on loopback only."""
    profile = profile_of(intent)
    return profile.api.key == "generate" and not _is_loopback(_api_host(profile, nodes[0]))


def build_plan(
    name: str,
    intent: Intent,
    nodes: Sequence[NodeFacts],
    *,
    generation: int,
    serial: int,
    api_port: int,
    rendezvous_port: int,
    rendezvous_ports: Sequence[int] = (),
    model_path: str | Mapping[str, str] | None = None,
    api_key: str | None = None,
    available: Mapping[str, int] | None = None,
    also_paths: Mapping[str, Mapping[str, str]] | None = None,
    nccl: Mapping[str, str] | None = None,
    images: Mapping[str, ImageReport] | None = None,
) -> Plan:
    """The plan of one generation on `nodes`, in rank order; nodes beyond the layout are spares.

    `rendezvous_ports` are those of earlier generations, oldest first. `model_path` is where agents found the
    model, for all nodes or by node id; without it the first place to look is planned. `also_paths` are those
    of the models of `model.also`, by node id and name. `api_key` goes into rank 0's secrets and nowhere else.
    `available` is the measured MemAvailable in bytes, by node id, of nodes on which no rank of this runs;
    `nccl` the version of NCCL of the nodes where it is known.
    `images` is what nodes say of the image asked for, by node id; without it the plan pins no content.

    Raises UsageError when the nodes cannot carry the layout, EngineUnknown for a node without an engine,
    ProfileError if the stored profile is not valid for this version of sparkd.
    """
    profile = profile_of(intent)
    ranks = profile.layout.ranks
    if len(nodes) < ranks:
        raise UsageError(
            f"{name} needs {ranks} nodes (tp {profile.layout.tp} x pp {profile.layout.pp}), "
            f"one for each rank; {len(nodes)} given"
        )
    images = images or {}
    if intent.image is not None:
        nodes = [in_image(node, images.get(node.id)) for node in nodes]
    members = tuple(nodes[:ranks])
    api = Address(_api_host(profile, members[0]), api_port)
    choice = choose(members_of(members))
    require_engines(members)
    rendezvous = Address(choice.seats[0].address, rendezvous_port)
    served = (name, profile.model.id) if profile.model.id else (name,)
    descriptor = Descriptor(
        name=name,
        intent=intent,
        serial=serial,
        generation=generation,
        nodes=tuple(node.id for node in members),
        api_port=api_port,
        rendezvous_ports=(*(port for port in rendezvous_ports if port != rendezvous_port), rendezvous_port),
    )
    lines = memory_lines(profile)
    environments = tuple(
        rank_environment(node, profile, intent.origins, choice, seat)
        for node, seat in zip(members, choice.seats, strict=True)
    )
    planned = tuple(
        _rank_plan(
            rank,
            node,
            profile,
            descriptor,
            api=api,
            rendezvous=rendezvous,
            served=served,
            model=_model_path(model_path, profile, node),
            also=(also_paths or {}).get(node.id, {}),
            api_key=api_key,
            env=env,
            # What a profile requires no variable of a node takes back.
            rdma=(requires_rdma(profile) or (choice.is_rdma and not asks_for_sockets(_texts(env))))
            and _ALLOWS_SOCKETS not in intent.forced,
            image=pinned(intent.image, images.get(node.id)),
        )
        for rank, (node, env) in enumerate(zip(members, environments, strict=True))
    )
    return Plan(
        deployment=name,
        profile=intent.profile_name,
        generation=generation,
        model_path=planned[0].args[1].words[0],
        api=api,
        rendezvous=rendezvous,
        served_names=served,
        ranks=planned,
        notes=_notes(intent, profile, nodes),
        verdicts=verdicts_of(
            profile,
            intent,
            members,
            available=available or {},
            further=(
                *_missed(findings(choice, nccl), environments, choice, profile),
                *own_address(choice),
                *image_verdicts(profile, members, images),
                *(verdict for env in environments for verdict in env.verdicts),
            ),
        ),
        memory=lines,
        verified=intent.verified,
    )


def _missed(
    found: Iterable[Verdict], environments: Sequence[RankEnvironment], choice: Choice, profile: Profile
) -> Iterator[Verdict]:
    """Without those of an RDMA that people asked all ranks to do without, unless the profile requires it."""
    without = [env.node for env in environments if asks_for_sockets(_texts(env, but="fabric"))]
    if not requires_rdma(profile):
        unwanted = len(without) == len(environments)
        return (verdict for verdict in found if verdict.id != "FABRIC_ABSENT" or not unwanted)
    told = list(found)
    absent = any(verdict.id == "FABRIC_ABSENT" for verdict in told)
    if not absent and choice.topology != "alone" and (without or not choice.is_rdma):
        told.append(unmet(choice, without))
    return iter(told)


def _texts(env: RankEnvironment, but: Origin | None = None) -> dict[str, str]:
    """All but secrets, and but those of one origin."""
    return {
        variable.name: variable.value
        for variable in env.values
        if not is_nodes_secret(variable) and variable.origin != but
    }


def _model_path(given: str | Mapping[str, str] | None, profile: Profile, node: NodeFacts) -> str:
    if isinstance(given, str):
        return given
    if given is not None and node.id in given:
        return given[node.id]
    return model_paths(profile.model, node)[0]


def _rank_plan(
    rank: int,
    node: NodeFacts,
    profile: Profile,
    descriptor: Descriptor,
    *,
    api: Address,
    rendezvous: Address,
    served: tuple[str, ...],
    model: str,
    also: Mapping[str, str],
    api_key: str | None,
    env: RankEnvironment,
    rdma: bool,
    image: PinnedImage | None,
) -> RankPlan:
    origins = descriptor.intent.origins
    engine = engine_of(node)
    args = (
        PlannedArg(("serve",), "sparkd"),
        PlannedArg((model,), *origin_of(origins, "model.path", "model.id")),
        *_own_args(rank, profile, api, rendezvous, served),
        *_profile_args(
            with_paths(profile.engine.args, _paths(profile, descriptor.intent, node, also)),
            origins,
            profile.why,
        ),
    )
    ranks = profile.layout.ranks
    spec = RankSpec(
        name=str(RankName(descriptor.name, descriptor.generation, rank)),
        deployment=descriptor.name,
        generation=descriptor.generation,
        rank=rank,
        ranks=ranks,
        runtime=runtime_of(node, descriptor.intent.image),
        engine=engine.name,
        args=tuple(word for arg in args for word in arg.words),
        # An empty value keeps the node's own from the rank.
        env=dict.fromkeys(env.masked, "") | _texts(env),
        rendezvous=rendezvous,
        descriptor=descriptor,
        probe=_probe(profile, api, served) if rank == 0 else None,
        weights_bytes=round(profile.memory.weights_gib * GIB),
        grace_s=DEFAULTS.down_grace_s,
        boot_max_s=profile.boot.max_s,
        log_cap_bytes=DEFAULTS.log_segments * DEFAULTS.log_segment_bytes,
        secrets={API_KEY_VARIABLE: api_key} if rank == 0 and api_key is not None else {},
        memory=MemoryNeed(
            need_bytes=need_bytes(memory_lines(profile)),
            margin_bytes=round(profile.memory.returned.margin_gib * GIB),
            hold_s=profile.memory.returned.hold_s,
            timeout_s=profile.memory.returned.timeout_s,
            use_bytes=need_bytes(memory_lines(profile)) - round(profile.memory.reserve_gib * GIB),
            load_spike_bytes=round(profile.memory.load_spike_gib * GIB),
            floor_loading_bytes=round(profile.memory.floors_gib.loading * GIB),
            floor_serving_bytes=round(profile.memory.floors_gib.serving * GIB),
            shm_bytes=round(profile.memory.shm_gib * GIB),
        ),
        rdma=rdma,
        image=image,
    )
    return RankPlan(rank, node.id, node.name, node.address, engine.command, args, env.values, spec)


def _paths(profile: Profile, intent: Intent, node: NodeFacts, also: Mapping[str, str]) -> dict[str, str]:
    """Where this node has what arguments refer to, by reference."""
    places = {f"also:{name}": model_paths(model, node)[0] for name, model in profile.model.also.items()}
    places |= {f"also:{name}": path for name, path in also.items()}
    folder = files_folder(node.files_folder, intent.files)
    return places | {f"files:{name}": f"{folder}/{name}" for name in profile.engine.files}


def _own_args(
    rank: int, profile: Profile, api: Address, rendezvous: Address, served: tuple[str, ...]
) -> list[PlannedArg]:
    def own(flag: str, *values: object, origin: Origin = "sparkd", note: str = "") -> PlannedArg:
        return PlannedArg((f"--{flag}", *(str(value) for value in values)), origin, note)

    layout = profile.layout
    names = "the deployment, then the Hub id" if len(served) > 1 else "the deployment"
    args = [own("served-model-name", *served, note=names)]
    if rank == 0:
        args += [own("host", api.host, note="api.host"), own("port", api.port, note="api.port")]
        if _QUIET_FLAG not in profile.engine.args:
            args.append(own(_QUIET_FLAG, _QUIET_PATHS, origin="default", note="the pulse reads them"))
    args.append(own("tensor-parallel-size", layout.tp, note="layout.tp"))
    if layout.pp > 1:
        args.append(own("pipeline-parallel-size", layout.pp, note="layout.pp"))
    if layout.ranks > 1:
        args += [
            own("nnodes", layout.ranks, note="layout, one rank a node"),
            own("node-rank", rank, note="the order of the nodes"),
            own("master-addr", rendezvous.host, origin="fabric", note="rank 0's address there"),
            own("master-port", rendezvous.port, note="another one for each generation"),
            own("distributed-executor-backend", "mp", note="vLLM's own ranks on several nodes, no Ray"),
        ]
    if rank > 0:
        args.append(own("headless", note="rank 0 alone has the API"))
    return args


def _profile_args(
    args: Mapping[str, Any], origins: Mapping[str, str], why: Mapping[str, str]
) -> list[PlannedArg]:
    planned = []
    for name, value in args.items():
        prefix = f"engine.args.{name}"
        # Parts of one JSON word may come from several layers; the last one that had a say is its origin.
        parts = {
            key: label for key, label in origins.items() if key == prefix or key.startswith(f"{prefix}.")
        }
        labels = list(dict.fromkeys(parts.values()))
        origin, note = last_say(labels)
        if len(labels) > 1:
            note = "; ".join(f"{key.removeprefix(prefix + '.')}: {label}" for key, label in parts.items())
        note = with_reason(origin, note, why.get(name, ""))
        planned += [PlannedArg(words, origin, note) for words in flags.render(name, value)]
    return planned


def runtime_of(node: NodeFacts, image: str | None) -> RuntimeName:
    """How this node would run a rank. Raises UsageError."""
    wanted: tuple[RuntimeName, ...] = ("docker",) if image else ("systemd", "process")
    for runtime in wanted:
        if runtime in node.runtimes:
            return runtime
    offered = ", ".join(node.runtimes) or "none"
    why = "".join(f"; {limit}" for limit in node.limits)
    raise UsageError(f"node {node.name} cannot run ranks by {' or '.join(wanted)} (it has: {offered}){why}")


def _api_host(profile: Profile, head: NodeFacts) -> str:
    if profile.api.host != "node":
        return profile.api.host
    return "127.0.0.1" if head.local else head.address


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _probe(profile: Profile, api: Address, served: tuple[str, ...]) -> Probe:
    ready = profile.ready
    return Probe(
        api=api,
        model=served[0],
        models=served,
        canaries=tuple(_canary(canary) for canary in ready.canaries),
        warmup=tuple(_canary(completion) for completion in ready.warmup),
        pulse_silence_s=ready.pulse.silence_s,
        pulse_timeout_s=ready.pulse.timeout_s,
    )


def _canary(completion: Completion) -> Canary:
    return Canary(
        messages=tuple(completion.messages),
        max_tokens=completion.max_tokens,
        contains=completion.expect.contains if isinstance(completion, CanaryCheck) else None,
        timeout_s=completion.timeout_s,
    )


def _notes(intent: Intent, profile: Profile, nodes: Sequence[NodeFacts]) -> tuple[str, ...]:
    notes = [
        f"--{name} is no flag that sparkd knows; passed on as it is"
        for name in profile.engine.args
        if flags.kind_of(name) == "unknown"
    ]
    notes += [text for name in profile.env if (text := variable_unknown(name)) is not None]
    if intent.image is not None:
        notes.append(f"in image {intent.image}; each launch pins its content, which must be one on all nodes")
    if needs_api_key(intent, nodes):
        notes.append("clients need an API key; `sparkd key NAME` shows it once the deployment exists")
    notes += memory_notes(profile, nodes[: profile.layout.ranks])
    spares = [node.name for node in nodes[profile.layout.ranks :]]
    if spares:
        notes.append(f"spare: {', '.join(spares)}")
    return tuple(notes)
