"""A node's answers to the questions of a preflight, read for the rules."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import msgspec

from sparkd.records.checkpoint import ModelsFound
from sparkd.records.facts import EngineVersions, MachineFacts
from sparkd.records.image import ImageAnswer
from sparkd.records.preflight import Member
from sparkd.records.report import NodeFacts, TaskResult

T = TypeVar("T")


def member_of(
    facts: NodeFacts,
    results: Mapping[str, TaskResult | None],
    *,
    clock_off_s: float | None = None,
    clock_error_s: float = 0.0,
) -> Member:
    """`results` are the answers to the tasks `files`, `facts` and `image`, as far as they were asked; None
    for one that did not come. The node's clock is ahead of the coordinator's by `clock_off_s`.
    """
    # A node that said nothing of its files is silent; it does not lack them.
    told = {kind: one for kind, one in results.items() if kind != "files" or one is not None}
    models, models_unknown = _read(told, "files", ModelsFound)
    image, image_unknown = _read(results, "image", ImageAnswer)
    machine, machine_unknown = _read(results, "facts", MachineFacts)
    if image is not None and machine is not None:
        machine = replace(machine, engines=_engines_in(image))
    fabric = facts.fabric if machine is None or machine.fabric is None else machine.fabric
    return Member(
        name=facts.name,
        address=facts.address,
        fabric_address=facts.fabric_address,
        local=facts.local,
        runtime="docker" if "image" in results else facts.runtimes[0] if facts.runtimes else None,
        model_roots=facts.model_roots,
        interface_named=bool(facts.fabric_interface) or (fabric is not None and fabric.readable),
        clock_off_s=clock_off_s,
        clock_error_s=clock_error_s,
        machine=machine,
        machine_unknown=machine_unknown,
        models=models,
        models_unknown=models_unknown,
        fabric=fabric,
        image=image,
        image_unknown=image_unknown,
    )


def _engines_in(image: ImageAnswer) -> tuple[EngineVersions, ...]:
    """With an image the node's own engines run nothing."""
    report = image.report
    if report is None:
        return ()
    found = {"vllm": report.facts.vllm, "torch": report.facts.torch, "nccl": report.facts.nccl}
    packages = {name: version for name, version in found.items() if version is not None}
    return (EngineVersions("image", report.facts.python, packages, build=report.identity),)


def _read(results: Mapping[str, TaskResult | None], asked: str, kind: type[T]) -> tuple[T | None, str]:
    """The answer, or why there is none."""
    if asked not in results:
        return None, ""
    result = results[asked]
    if result is None:
        return None, "it did not answer in time"
    if not result.ok:
        return None, result.error or "it could not answer"
    try:
        return msgspec.convert(result.result, kind), ""
    except msgspec.ValidationError as error:
        return None, f"its answer is not understood: {error}"
