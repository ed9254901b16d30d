"""One node in a preflight: what a plan knows of it, and its answers to the questions of the preflight."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from sparkd.records.checkpoint import ModelsFound
from sparkd.records.facts import MachineFacts
from sparkd.records.report import NodeFacts, TaskResult

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Member:
    """`machine` and `models` are None when the node did not answer; then the reason says why."""

    facts: NodeFacts
    machine: MachineFacts | None = None
    models: ModelsFound | None = None
    machine_unknown: str = ""
    models_unknown: str = ""
    models_asked: bool = False
    """A profile was given, so its model was looked for."""
    clock_offset_s: float = 0.0
    """Coordinator's wall clock minus the node's."""
    clock_error_s: float = 0.0
    occupied: bool = False
    """A rank runs there: its memory and ports are given away, and rightly so."""

    @property
    def name(self) -> str:
        return self.facts.name

    @property
    def runtime(self) -> str | None:
        """How it would start a rank."""
        return self.facts.runtimes[0] if self.facts.runtimes else None


def member_of(
    facts: NodeFacts,
    results: Mapping[str, TaskResult | None],
    *,
    clock_offset_s: float = 0.0,
    clock_error_s: float = 0.0,
    occupied: bool = False,
) -> Member:
    """`results` are the answers to the tasks `files` and `facts`; None for one that did not come."""
    models, models_unknown = _read(results.get("files"), ModelsFound)
    machine, machine_unknown = _read(results.get("facts"), MachineFacts)
    return Member(
        facts=facts,
        machine=machine,
        models=models,
        machine_unknown=machine_unknown,
        models_unknown=models_unknown,
        models_asked="files" in results,
        clock_offset_s=clock_offset_s,
        clock_error_s=clock_error_s,
        occupied=occupied,
    )


def _read(result: TaskResult | None, kind: type[T]) -> tuple[T | None, str]:
    """The answer, or why there is none."""
    if result is None:
        return None, "it did not answer in time"
    if not result.ok:
        return None, result.error or "it could not answer"
    try:
        return msgspec.convert(result.result, kind), ""
    except msgspec.ValidationError as error:
        return None, f"its answer is not understood: {error}"
