import pytest

from sparkd.gang.causes import classify


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("main.py: error: unrecognized arguments: --enforce-eagr", "ARGUMENT_INVALID"),
        ("vllm serve: error: argument --dtype: invalid choice: 'bf17'", "ARGUMENT_INVALID"),
        ("/opt/python: No module named vllm", "ENGINE_MISSING"),
        ("cannot execute /x/bin/python: No such file or directory", "ENGINE_MISSING"),
        (
            "ValueError: Model architectures ['FooForCausalLM'] are not supported for now.",
            "MODEL_UNSUPPORTED",
        ),
        ("ValueError: Free memory on device cuda:0 (74.9/121.69 GiB) on startup is less", "MEM_FREE_GATE"),
        ("torch.OutOfMemoryError: CUDA out of memory.", "MEM_FREE_GATE"),
        ("torch.distributed.DistNetworkError: … code: -98, name: EADDRINUSE, …", "PORT_STOLEN"),
    ],
)
def test_a_line_that_says_why(line: str, cause: str) -> None:
    found = classify(["something before", line, "something after"])
    assert found is not None
    assert found.id == cause
    assert found.remedy


@pytest.mark.parametrize(
    "line",
    [
        "NCCL WARN Connection closed by remote peer",
        "RuntimeError: [enforce fail at tcp/pair.cc] Connection reset by peer",
        "Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor.",
        "",
    ],
)
def test_what_a_retry_may_cure_has_no_row(line: str) -> None:
    assert classify([line]) is None
