"""One cause out of all that was seen; the rest is counted, and what is not known is said."""

from dataclasses import replace

import pytest

from sparkd.diagnosis.evidence import End, Evidence, Line, NodeSample
from sparkd.diagnosis.explanation import explain, of_fall, with_calls
from sparkd.diagnosis.lines import ForeignLog, of_last_life, read_line
from sparkd.records.explanation import Cause
from sparkd.records.fall import Fall
from sparkd.records.report import Sample
from sparkd.records.verdict import Severity, Verdict

NCCL = "spark-1:812:901 [0] NCCL WARN socketProgress: Connection reset by peer"
DIED = "Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor."
GATE = "ValueError: Free memory on device cuda:0 (74.9/121.69 GiB) on startup is less than desired GPU memory"


def line(text: str, rank: int, at: float | None) -> Line:
    return read_line(text, rank=rank, node=f"spark-{rank + 1}", at=at)


def cause_of(evidence: Evidence) -> Cause:
    cause = explain(evidence).cause
    assert cause is not None
    return cause


def test_the_victim_is_named_although_the_survivor_cried_out_25_ms_before() -> None:
    told = explain(Evidence((line(NCCL, 0, 10.000), line(DIED, 1, 10.025))))
    assert told.cause is not None
    assert (told.cause.id, told.cause.rank, told.cause.node) == ("PROCESS_KILLED", 1, "spark-2")
    assert [(one.id, one.rank) for one in told.secondary] == [("PEER_LOST", 0)]


def test_the_loudest_is_not_the_cause() -> None:
    """Case 8: rank 0 says it once, and rank 1 cries 200 times."""
    cries = [line(NCCL, 1, 11.2 + place / 100) for place in range(200)]
    told = explain(Evidence((line(GATE, 0, 10.0), *cries)))
    assert told.cause is not None
    assert (told.cause.id, told.cause.rank) == ("MEM_FREE_GATE", 0)
    assert [(one.id, one.rank, one.count) for one in told.secondary] == [("PEER_LOST", 1, 200)]


def test_what_a_rank_said_explains_its_end() -> None:
    out_of_memory = line("torch.OutOfMemoryError: CUDA out of memory.", 1, 9.5)
    assert cause_of(Evidence((out_of_memory, line(DIED, 1, 10.0)))).id == "CUDA_OOM"
    assert cause_of(Evidence((line(DIED, 0, 10.0), out_of_memory))).id == "PROCESS_KILLED"


def test_the_kernel_is_named_where_it_says_so() -> None:
    kernel = read_line("Out of memory: Killed process 812 (VLLM::Worker_TP)", node="spark-2", at=9.9)
    end = End("VLLM::Worker_TP1", 1, "spark-2", pid=812, signal=9, at=10.0)
    assert cause_of(Evidence(kernel=(kernel,), ends=(end,))).id == "KERNEL_OOM"
    other = End("VLLM::Worker_TP1", 1, "spark-2", pid=900, signal=9, at=10.0)
    told = explain(Evidence(kernel=(kernel,), ends=(other,)))
    assert [one.id for one in told.secondary] == ["PROCESS_KILLED"]


def test_what_was_over_long_before_the_fall_is_no_cause_of_it() -> None:
    fall = Fall(1, 1, "spark-2", "it ended", wall=100.0, signal=9, cause="PROCESS_KILLED")
    end = End("VLLM::Worker", 1, "spark-2", pid=812, signal=9, at=100.0)
    for at, causes in ((40.0, ["PROCESS_KILLED"]), (99.0, ["GPU_XID", "PROCESS_KILLED"])):
        kernel = read_line("NVRM: Xid (PCI:000f:01:00): 79, GPU has fallen off", node="spark-2", at=at)
        old = replace(kernel, at=30.0)
        told = of_fall(explain(Evidence(kernel=(old, kernel), ends=(end,)), fall), fall, ())
        assert [one.id for one in (told.cause, *told.secondary) if one] == causes


def test_a_verdict_that_a_node_still_shows_as_a_warning_is_no_cause() -> None:
    struck = Verdict("KERNEL_OOM", Severity.WARN, "the kernel's OOM killer has struck", evidence="at noon")
    end = End("VLLM::Worker", 1, "spark-2", pid=812, signal=11, at=100.0)
    sample = NodeSample("spark-2", 100.0, Sample(verdicts=(struck,)))
    told = explain(Evidence(ends=(end,), samples=(sample,)))
    assert told.cause is not None
    assert told.cause.id == "PROCESS_CRASHED"
    assert [verdict.id for verdict in told.verdicts] == ["PROCESS_CRASHED", "KERNEL_OOM"]


@pytest.mark.parametrize(("signal", "bare"), [(6, "PROCESS_ABORTED"), (11, "PROCESS_CRASHED")])
def test_the_driver_of_a_node_says_more_than_the_signal_that_followed(signal: int, bare: str) -> None:
    """A line of the kernel has the time of the look that found it: as right as the look is long."""
    fall = Fall(1, 1, "spark-2", "it ended", wall=100.0, signal=signal, cause=bare)
    end = End("VLLM::Worker", 1, "spark-2", pid=812, signal=signal, at=100.0)
    for node, id_ in (("spark-2", "GPU_XID"), ("spark-1", bare)):
        xid = "NVRM: Xid (PCI:000f:01:00): 79, GPU has fallen off the bus."
        kernel = read_line(xid, node=node, at=100.4, error_s=1.0)
        told = of_fall(explain(Evidence(kernel=(kernel,), ends=(end,)), fall), fall, ())
        assert told.cause is not None
        assert told.cause.id == id_


def test_two_in_one_moment_are_both_told() -> None:
    ends = tuple(
        End("VLLM::Worker", rank, f"spark-{rank + 1}", signal=9, at=10 + rank / 100, error_s=0.02)
        for rank in (0, 1)
    )
    told = explain(Evidence(ends=ends))
    assert [verdict.rank for verdict in told.verdicts] == [0, 1]
    assert any("clocks" in gap for gap in told.not_known)


def test_an_unknown_failure_shows_its_lines_and_says_unknown() -> None:
    words = [
        "Traceback (most recent call last):",
        "RuntimeError: the flux capacitor is empty",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    ]
    told = explain(Evidence(tuple(line(text, 0, None) for text in words)))
    assert told.cause is not None
    assert told.cause.id == "UNKNOWN"
    assert "RuntimeError: the flux capacitor is empty" in told.lines
    assert any("why it ended" in gap for gap in told.not_known)


def test_a_state_alone_is_no_fall() -> None:
    told = explain(Evidence((line("spark-1:7:9 [0] NCCL INFO NET/IB : No device found.", 0, 1.0),)))
    assert told.cause is None
    assert [verdict.id for verdict in told.verdicts] == ["NO_HCA"]


@pytest.mark.parametrize(
    ("raw", "text", "rank", "second"),
    [
        ("(Worker_TP1 pid=7) ERROR 11-30 07:49:17 [a.py:1] boom", "boom", None, 17.0),
        ("spark-2  | 2026-11-30T07:49:18.25Z (Worker pid=7) boom", "boom", None, 18.25),
        ("Nov 30 07:49:19 spark-2 vllm[812]: boom", "boom", None, 19.0),
        ("[rank3]: RuntimeError: boom", "RuntimeError: boom", 3, None),
        ("[1,2]<stderr>: boom", "boom", 2, None),
        ("(RayWorkerWrapper pid=7, ip=10.0.0.2) boom", "boom", None, None),
        ("\x1b[36m(Worker pid=7)\x1b[0;0m boom", "boom", None, None),
        ("12345678901 1796024957250000000 2 boom", "boom", None, 17.25),
        ("[W1130 07:49:24.656 a.cpp:1] boom", "[W1130 07:49:24.656 a.cpp:1] boom", None, 24.0),
    ],
)
def test_lines_of_other_launchers(raw: str, text: str, rank: int | None, second: float | None) -> None:
    read, of_kernel = ForeignLog(rank=None, node=None, year=2026).read(raw)
    assert (read.text, read.rank, of_kernel) == (text, rank, False)
    assert (read.at is None) == (second is None)
    if read.at is not None and second is not None:
        assert read.at % 60 == pytest.approx(second)


@pytest.mark.parametrize(
    "raw",
    [
        "[ 8123.123456] NVRM: Xid (PCI:000f:01:00): 79, GPU has fallen off the bus.",
        "Nov 30 07:49:19 spark-2 kernel: [UFW BLOCK] IN=a SRC=10.0.0.1 DPT=51423",
        "[UFW BLOCK] IN=enp1s0f1np1 SRC=192.168.100.10 DPT=51423",
    ],
)
def test_lines_of_the_kernel(raw: str) -> None:
    _, of_kernel = ForeignLog(rank=None, node=None, year=2026).read(raw)
    assert of_kernel


def test_a_line_without_a_time_has_that_of_the_one_before_it() -> None:
    log = ForeignLog(rank=0, node=None, year=2026)
    stamped, _ = log.read("INFO 11-30 07:49:17 [a.py:1] one")
    bare, _ = log.read("RuntimeError: two")
    assert stamped.at is not None
    assert bare.at == pytest.approx(stamped.at)
    assert bare.at is not None
    assert bare.at > stamped.at, "lines of one second keep their order"


def test_only_the_last_life_of_a_log_counts() -> None:
    lines = [
        line(text, 0, None)
        for text in (
            GATE,
            "vLLM API server version 0.32.0",
            "OSError: [Errno 98] Address already in use",
            "Application startup complete.",
            "fine",
        )
    ]
    assert [one.text for one in of_last_life(lines)] == ["Application startup complete.", "fine"]


def test_what_nodes_find_when_they_call_each_other_explains_ranks_that_did_not_come_together() -> None:
    fall = Fall(1, 1, "spark-2", "it timed out", wall=100.0, code=1, cause="HEAD_UNREACHABLE")
    told = of_fall(explain(Evidence(), fall), fall, ())
    wall = Verdict("FIREWALL", Severity.BLOCK, "a firewall", evidence="spark-2 to spark-1", node="spark-1")
    after = with_calls(told, (wall,))
    assert after.cause == Cause("FIREWALL", None, "spark-1", "spark-2 to spark-1")
    assert [(one.id, one.rank, one.node) for one in after.secondary] == [("HEAD_UNREACHABLE", 1, "spark-2")]
    assert after.verdicts[0] == wall
    noted = with_calls(told, (replace(wall, severity=Severity.WARN),))
    assert noted.cause == told.cause, "a warning keeps nobody apart"
    assert with_calls(told, ()) == told


def test_what_ranks_and_calls_both_tell_is_told_once() -> None:
    wall = Verdict("FIREWALL", Severity.BLOCK, "a firewall", evidence="spark-2 to spark-1", node="spark-1")
    small = Verdict("MTU_MISMATCH", Severity.WARN, "small packets only", node="spark-1")
    fall = Fall(1, 0, "spark-1", "it timed out", wall=100.0, code=1, cause="FIREWALL")
    told = of_fall(explain(Evidence(), fall), fall, (replace(wall, rank=0), small))
    after = with_calls(told, (wall, wall, small))
    assert after.verdicts == (wall, small)
    assert after.secondary == (), "a cause does not follow from itself"
    noted = with_calls(told, (small, small))
    assert [one.id for one in noted.verdicts] == ["FIREWALL", "MTU_MISMATCH"]
    assert with_calls(after, (wall, small)) == after, "once more changes nothing"
