"""The catalogue as a whole: found by listing folders, complete, and in plain words."""

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest

import sparkd.diagnosis.rules
from sparkd.diagnosis.catalogue import areas, catalogue, cause_of_rank, judge
from sparkd.diagnosis.evidence import Evidence, Line
from sparkd.diagnosis.explanation import explain
from sparkd.diagnosis.lines import read_line
from sparkd.diagnosis.page import page
from sparkd.diagnosis.rule import Found, Rule
from sparkd.records.verdict import Severity
from tests.bed.cases import case_folders, evidence_of

ROOT = Path(__file__).parents[3]
FOLDER = Path(sparkd.diagnosis.rules.__file__).parent


def test_each_file_is_one_rule_of_its_name() -> None:
    files = {path.stem: path.parent.name for path in FOLDER.glob("*/[A-Z]*.py")}
    assert {rule.id: area.name for area in areas() for rule in area.rules} == files
    assert len(files) == len(list(FOLDER.glob("*/[A-Z]*.py"))), "one id lies in two areas"
    assert all(area.about for area in areas())


@pytest.mark.parametrize("rule", catalogue().values(), ids=lambda rule: rule.id)
def test_a_rule_says_what_is_wrong_why_and_what_to_do(rule: Rule) -> None:
    assert re.fullmatch(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*", rule.id)
    assert rule.title
    assert rule.cause
    assert rule.remedy
    assert all(re.fullmatch(r"[\w.-]+=\S+", one) for one in rule.prevents)
    assert all(len(needle) >= 4 for needle in rule.line_needles), "too short to be looked for in a long log"


def test_nothing_seen_means_nothing_found() -> None:
    assert judge(Evidence()) == ()


def test_every_id_that_a_part_emits_is_in_the_catalogue() -> None:
    emitted = {
        id_: f"{path.relative_to(ROOT)}:{call.lineno}"
        for folder in ("sparkd", "agents")
        for path in (ROOT / folder).rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") in EMITTERS
        for id_ in ids_in(call)
    }
    assert len(emitted) > 20
    assert {id_: where for id_, where in emitted.items() if id_ not in catalogue()} == {}


EMITTERS = {"Verdict", "Condemned", "_Found", "begin_fall", "_judged"}


def ids_in(call: ast.Call) -> list[str]:
    parts = (*call.args, *(keyword.value for keyword in call.keywords))
    texts = [part.value for part in parts if isinstance(part, ast.Constant)]
    return [str(text) for text in texts if re.fullmatch(r"[A-Z0-9]+(_[A-Z0-9]+)+", str(text))]


def test_the_lines_of_a_hit_name_the_same_cause_to_the_gang() -> None:
    """What a rank's agent sends are raw lines, and how its process ended; the gang judges those."""
    wrong = []
    for case in case_folders():
        rule = catalogue()[case.parent.name]
        evidence = evidence_of(case)
        if not case.name.startswith("hit") or rule.kind == "state" or not evidence.lines:
            continue
        end = next((replace(one, rank=None) for one in evidence.ends), None)
        found = cause_of_rank(tuple(line.text for line in evidence.lines), end)
        if found is not rule:
            wrong.append(f"{case.parent.name}/{case.name}: {found.id if found else None}")
    # With the MTU wrong a peer is lost, and that is what the gang hears of it.
    assert wrong == ["MTU_MISMATCH/hit-retry: PEER_LOST"]


def test_a_healthy_start_has_no_cause() -> None:
    """NCCL looks for symbols of newer libraries, and says of each that it is not there."""
    lines = (ROOT / "tests/fixtures/nccl-2.28-sockets/rank0.log").read_text().splitlines()
    assert cause_of_rank(tuple(lines)) is None
    told = explain(Evidence(tuple(read_line(raw, rank=0) for raw in lines)))
    assert told.cause is None
    assert all(verdict.severity is not Severity.BLOCK for verdict in told.verdicts)


def test_a_warning_ends_nothing_and_the_same_words_in_an_error_do() -> None:
    words = "11-30 07:50:38 [a.py:1] ImportError: libcudart.so.12: cannot open shared object file"
    for level, id_ in (("INFO", None), ("WARNING", None), ("ERROR", "LIBRARY_MISSING")):
        found = cause_of_rank((f"(Worker_TP0 pid=7) {level} {words}",))
        assert (found.id if found else None) == id_


def test_what_another_start_may_cure_is_tried_again() -> None:
    """An interface that comes up late; memory that another process still holds."""
    retries = {"IFNAME_STALE_CONCRETE": "normal", "MEMLOCK": "memory", "SHM_LEAK": "normal"}
    assert {id_: catalogue()[id_].retry for id_ in retries} == retries


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: [enforce fail at tcp/pair.cc] something that nobody has seen before",
        "",
    ],
)
def test_what_nothing_is_known_of_has_no_cause(line: str) -> None:
    assert cause_of_rank((line,)) is None


def test_the_page_is_that_of_the_catalogue() -> None:
    told = (ROOT / "docs" / "diagnosis.md").read_text()
    assert told == page(), "run: .venv/bin/python -m sparkd.diagnosis.page > docs/diagnosis.md"


def test_a_rule_with_a_fault_is_told_of_and_stops_nobody() -> None:
    def stumble(_: Evidence) -> tuple[Found, ...]:
        raise IndexError("string index out of range")

    broken = replace(catalogue()["CUDA_OOM"], match=stumble)
    lines = (Line("torch.OutOfMemoryError: CUDA out of memory."),)
    told = judge(Evidence(lines), (broken, catalogue()["CUDA_OOM"]))
    assert [one.rule.id for one in told] == ["RULE_FAULT", "CUDA_OOM"]
    assert told[0].verdict.evidence == "CUDA_OOM: IndexError: string index out of range"
    assert told[0].verdict.severity is Severity.NOTE
