"""Asked first, or killed first: vLLM's word of a signal, beside the end of one of its processes."""

import pytest

from sparkd.diagnosis.catalogue import catalogue, judge
from sparkd.diagnosis.evidence import End, Evidence
from sparkd.diagnosis.lines import ASKED_TO_END, read_line

RULES = [catalogue()[id_] for id_ in ("PROCESS_KILLED", "PROCESS_TERMINATED")]


@pytest.mark.parametrize(
    ("asked_at", "cause"),
    [(99.9, "PROCESS_TERMINATED"), (100.0, "PROCESS_TERMINATED"), (103.0, "PROCESS_KILLED")],
)
def test_what_came_first_is_the_cause(asked_at: float, cause: str) -> None:
    line = read_line(ASKED_TO_END, rank=0, node="spark-1", at=asked_at)
    end = End("VLLM::EngineCore", 0, "spark-1", 700, signal=9, at=100.0)
    assert [one.rule.id for one in judge(Evidence((line,), ends=(end,)), RULES)] == [cause]
