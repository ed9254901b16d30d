from collections.abc import Iterator

from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.odd import engine_of, engines_matter, fact, odd_ones, package
from sparkd.diagnosis.rule import Found, Rule
from sparkd.records.facts import MachineFacts
from sparkd.records.preflight import Member
from sparkd.records.verdict import Severity


def _match(evidence: Evidence) -> Iterator[Found]:
    looks = {
        "NVIDIA driver": fact(lambda machine: machine.driver),
        "kernel": fact(lambda machine: machine.kernel),
        "architecture": fact(lambda machine: machine.architecture),
        "system firmware": fact(lambda machine: machine.firmware.get("system")),
        "network card firmware": fact(_of_cards),
    }
    if engines_matter(evidence):
        looks |= {
            "CUDA runtime": package("cuda"),
            "triton": package("triton"),
            "FlashInfer": package("flashinfer"),
            "transformers": package("transformers"),
            "Python": _python,
        }
    yield from odd_ones(evidence.members, looks)


def _of_cards(machine: MachineFacts) -> str | None:
    """Devices have other names on other nodes, by the port that is cabled; their versions should be one."""
    found = {version for part, version in machine.firmware.items() if part != "system"}
    return ", ".join(sorted(found)) or None


def _python(member: Member) -> str | None:
    engine = engine_of(member)
    return engine.python if engine is not None else None


RULE = Rule(
    id="HOST_SKEW",
    title="other versions than on the other nodes",
    cause="one node was updated and the others were not; gangs often serve all the same",
    remedy="bring it to the same state by the updates of its system, and reboot it",
    match=_match,
    kind="state",
    severity=Severity.WARN,
)
