"""A node seen as the image that was asked for, and what speaks against that image."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from sparkd.profile.schema import Profile
from sparkd.records.image import ImageReport
from sparkd.records.rank import PinnedImage
from sparkd.records.report import EngineFacts, NodeFacts
from sparkd.records.verdict import Severity, Verdict

ENGINE: Final = "image"
"""The name of the engine in an image, as a rank spec has it."""
_COMMAND: Final = ("python3", "-m", "vllm.entrypoints.cli.main")
"""Before a node was asked: how an image's vLLM is started where its entry point does not matter."""


def in_image(node: NodeFacts, report: ImageReport | None) -> NodeFacts:
    """The same node with nothing but the image's engine."""
    command = _COMMAND if report is None else report.command
    engine = EngineFacts(ENGINE, command)
    if report is not None:
        engine = replace(engine, version=report.facts.vllm, flags=report.facts.flags)
    # NCCL reads the image's own nccl.conf, and not the node's.
    fabric = None if node.fabric is None else replace(node.fabric, nccl=())
    return replace(node, engines=(engine,), fabric=fabric)


def pinned(name: str | None, report: ImageReport | None) -> PinnedImage | None:
    if name is None:
        return None
    return PinnedImage(name, "" if report is None else report.identity)


def image_verdicts(
    profile: Profile, members: Sequence[NodeFacts], images: Mapping[str, ImageReport]
) -> list[Verdict]:
    """Ranks of two contents are a gang of two versions; an image without vLLM starts nothing; one whose vLLM
    a required mod does not know ends while it loads.
    """
    found: dict[str, list[str]] = {}
    verdicts = []
    for node in members:
        report = images.get(node.id)
        if report is None:
            continue
        said = f"{report.identity} (vLLM {report.facts.vllm}, torch {report.facts.torch})"
        found.setdefault(said, []).append(node.name)
        if report.facts.vllm is None:
            verdicts.append(
                Verdict(
                    id="IMAGE_NO_VLLM",
                    severity=Severity.BLOCK,
                    title="the image has no vLLM that its python3 knows of",
                    evidence=f"{report.name} on {node.name}, python {report.facts.python}",
                    remedy="use an image with vLLM installed",
                    node=node.id,
                )
            )
    verdicts += _mods_verdicts(profile, images)
    if len(found) > 1:
        name = next(iter(images.values())).name
        verdicts.append(
            Verdict(
                id="IMAGE_MISMATCH",
                severity=Severity.BLOCK,
                title=f"image {name} is not the same on all nodes",
                evidence="; ".join(f"{said} on {', '.join(names)}" for said, names in sorted(found.items())),
                remedy=f"copy it from one to the others: docker save {name} | ssh NODE docker load",
            )
        )
    return verdicts


def _mods_verdicts(profile: Profile, images: Mapping[str, ImageReport]) -> list[Verdict]:
    """Once for each content."""
    contents = {report.identity: report for report in images.values()}
    asked = {mod.name for mod in profile.mods if mod.required and mod.unknown == "refuse"}
    return [
        Verdict(
            id="MOD_MISSING",
            severity=Severity.BLOCK,
            title=f"mod {said.name} does not know the vLLM in image {report.name}",
            evidence=said.reason,
            remedy="use an image with a vLLM that it knows, or `unknown: try` in the profile, which dares it",
        )
        for report in contents.values()
        for said in report.facts.mods
        if said.name in asked and said.verdict == "unknown"
    ]
