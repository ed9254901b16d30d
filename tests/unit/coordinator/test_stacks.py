"""What nodes answer when they are asked where threads are: read, whatever it is."""

import pytest

from sparkd.coordinator.stacks import read_stacks, shortened
from sparkd.records.report import TaskResult


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (None, "did not answer in time"),
        (TaskResult("t", ok=False, error="it does not run on this node"), "it does not run on this node"),
        (TaskResult("t", ok=False), "does not say why"),
        (TaskResult("t", ok=True, result={"processes": [{"pid": "x"}]}), "not understood"),
        (TaskResult("t", ok=True, result={}), "not understood"),
    ],
)
def test_a_node_that_tells_nothing(result: TaskResult | None, says: str) -> None:
    told = read_stacks(1, "b", result)
    assert (told.rank, told.node, told.processes) == (1, "b", ())
    assert says in str(told.error)


@pytest.mark.parametrize("lines", [0, 199, 200, 201, 5000])
def test_a_long_stack_is_shortened_and_says_so(lines: int) -> None:
    process = {"pid": 7, "title": "VLLM::Worker", "lines": ["a line"] * lines, "silent": ""}
    told = shortened(read_stacks(0, "a", TaskResult("t", ok=True, result={"processes": [process]})), 200)
    (one,) = told.processes
    assert one.lines[:200] == ("a line",) * min(lines, 200)
    assert one.lines[200:] == ((f"… and {lines - 200} lines more",) if lines > 200 else ())
