"""What speaks against a plan, seen from the facts of its nodes. Each finding says what to do."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sparkd.engine.flags import resolve
from sparkd.engine.plugin import known_mods
from sparkd.engine.releases import flag_missing, variable_missing
from sparkd.engine.versions import VersionRange, release_of
from sparkd.errors import EngineUnknown
from sparkd.profile.memory import memory_verdicts
from sparkd.profile.schema import Profile
from sparkd.records.intent import Intent
from sparkd.records.report import EngineFacts, NodeFacts
from sparkd.records.verdict import Severity, Verdict


def require_engines(members: Sequence[NodeFacts]) -> None:
    """Raises EngineUnknown for a node without one, and tells of the images that all of them have."""
    node = next((node for node in members if not node.engines), None)
    if node is None:
        return
    instead = ", or ask for an image (--image)" if "docker" in node.runtimes else ""
    common = set.intersection(*(set(node.images) for node in members))
    if instead and common:
        instead += f"; all nodes have {', '.join(sorted(common))}"
    raise EngineUnknown(
        f"node {node.name} has no engine; name one in its agent.toml ([engine.default]){instead}"
    )


def engine_of(node: NodeFacts) -> EngineFacts:
    """The engine that a rank on this node runs. Raises EngineUnknown if it has none."""
    require_engines((node,))
    return next((engine for engine in node.engines if engine.name == "default"), node.engines[0])


def verdicts_of(
    profile: Profile,
    intent: Intent,
    members: Sequence[NodeFacts],
    *,
    available: Mapping[str, int],
    further: Sequence[Verdict] = (),
) -> tuple[Verdict, ...]:
    """Every finding about these nodes; those whose ids the intent forces are marked as waived.

    `available` is the measured MemAvailable, as in `build_plan`; `further` was found elsewhere.
    """
    found = [
        *_verdicts(profile, members),
        *_files_verdicts(profile, intent, members),
        *memory_verdicts(profile, members, available),
        *further,
    ]
    return tuple(replace(verdict, waived=verdict.id in intent.forced) for verdict in found)


def _verdicts(profile: Profile, members: Sequence[NodeFacts]) -> list[Verdict]:
    versions = (_engine_verdict(profile, node) for node in members)
    verdicts = [verdict for verdict in versions if verdict is not None]
    verdicts += _surface_verdicts(profile, members)
    verdicts += [
        Verdict(
            id="MOD_UNKNOWN",
            severity=Severity.BLOCK if mod.required else Severity.WARN,
            title=f"mod {mod.name} does not exist",
            remedy=f"these do: {', '.join(known_mods())}",
        )
        for mod in profile.mods
        if mod.name not in known_mods()
    ]
    return verdicts


def _files_verdicts(profile: Profile, intent: Intent, members: Sequence[NodeFacts]) -> list[Verdict]:
    """Files whose content was never sent, and nodes that cannot take any."""
    if not profile.engine.files:
        return []
    lost = [name for name in profile.engine.files if name not in intent.files]
    unable = [node for node in members if not node.files_folder]
    found = [
        Verdict(
            id="ENGINE_FILES",
            severity=Severity.BLOCK,
            title="this node's agent does not put files of profiles in place",
            evidence=", ".join(profile.engine.files),
            remedy="install the agent that comes with this sparkd",
            node=node.id,
        )
        for node in unable
    ]
    if lost:
        found.append(
            Verdict(
                id="ENGINE_FILES",
                severity=Severity.BLOCK,
                title="the content of engine.files is not in what was asked for",
                evidence=", ".join(lost),
                remedy="ask with the sparkd command: it reads the files beside the profile",
            )
        )
    return found


def _engine_verdict(profile: Profile, node: NodeFacts) -> Verdict | None:
    engine = engine_of(node)
    if engine.version is None:
        return None
    try:
        if VersionRange.parse(profile.engine.vllm).contains(engine.version):
            return None
    except ValueError:
        pass
    return Verdict(
        id="ENGINE_VERSION",
        # Numbers of development builds say little about what is in them.
        severity=Severity.WARN if _is_development(engine.version) else Severity.BLOCK,
        title="the profile is for other versions of vLLM",
        evidence=f"vLLM {engine.version} on {node.name}, the profile wants {profile.engine.vllm}",
        remedy="install such a version, or change engine.vllm if you know that this one serves the model",
        node=node.id,
    )


def _surface_verdicts(profile: Profile, members: Sequence[NodeFacts]) -> list[Verdict]:
    """What the engines of these nodes do not have, once for each version among them."""
    nodes: dict[tuple[str, tuple[str, ...] | None], list[str]] = {}
    for node in members:
        engine = engine_of(node)
        if engine.version is not None:
            nodes.setdefault((engine.version, engine.flags), []).append(node.name)
    found = []
    for (version, flags), names in nodes.items():
        flags_missing = [f"--{name}" for name in profile.engine.args if _lacks(name, version, flags)]
        variables_missing = [name for name in profile.env if variable_missing(name, version)]
        where = f"vLLM {version} on {', '.join(names)}"
        if flags_missing:
            found.append(
                Verdict(
                    id="ENGINE_FLAGS",
                    # As for versions: a development build may have what its number does not tell.
                    severity=Severity.WARN if flags is None and _is_development(version) else Severity.BLOCK,
                    title=f"the engine has no {', '.join(flags_missing)} and would not start",
                    evidence=where,
                    remedy="leave it out, or install a version that has it",
                )
            )
        if variables_missing:
            found.append(
                Verdict(
                    id="ENGINE_VARIABLES",
                    severity=Severity.WARN,
                    title=f"the engine passes over {', '.join(variables_missing)}",
                    evidence=where,
                    remedy="leave it out, or install a version that has it",
                )
            )
    return found


def _lacks(name: str, version: str, flags: tuple[str, ...] | None) -> bool:
    """What nobody knows may be a plug-in's."""
    flag = resolve(name)
    return flag_missing(name, version) if flags is None else flag.known and flag.name not in flags


def _is_development(version: str) -> bool:
    try:
        return release_of(version)[1]
    except ValueError:
        return True
