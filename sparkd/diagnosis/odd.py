"""Who differs: what most nodes have is taken for right, and what the first of them has if it is a tie."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.rule import Found
from sparkd.records.facts import EngineVersions, MachineFacts
from sparkd.records.preflight import Member

Look = Callable[[Member], str | None]
"""One thing that nodes should have in common; None (or nothing) where a node does not tell."""


def odd_ones(members: Sequence[Member], looks: Mapping[str, Look]) -> Iterator[Found]:
    """A finding for each node that differs from the rest in any of these things, by their names."""
    differences: dict[str, list[tuple[str, str]]] = {}
    for what, look in looks.items():
        told = [(member.name, value) for member in members if (value := look(member))]
        values = [value for _, value in told]
        if len(set(values)) <= 1:
            continue
        right = max(dict.fromkeys(values), key=values.count)
        with_it = ", ".join(name for name, value in told if value == right)
        for name, value in told:
            if value != right:
                text = f"{what}: {value} on {name}, {right} on {with_it}"
                differences.setdefault(name, []).append((what, text))
    for name, found in differences.items():
        yield Found(
            "; ".join(text for _, text in found),
            node=name,
            title=f"another {', '.join(what for what, _ in found)} than on the other nodes",
        )


def engines_matter(evidence: Evidence) -> bool:
    """Not where ranks run in containers: those of one image have one engine."""
    return evidence.asked is None or evidence.asked.image is None


def engine_of(member: Member) -> EngineVersions | None:
    """The one that a rank on this node runs."""
    engines = member.machine.engines if member.machine is not None else ()
    return next((one for one in engines if one.name == "default"), engines[0] if engines else None)


def package(name: str) -> Look:
    def look(member: Member) -> str | None:
        engine = engine_of(member)
        return engine.packages.get(name) if engine is not None else None

    return look


def fact(look: Callable[[MachineFacts], str | None]) -> Look:
    return lambda member: look(member.machine) if member.machine is not None else None
