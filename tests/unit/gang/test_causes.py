"""Which rank a gang names when several are found down in one report."""

import pytest

from sparkd.clock import Instant
from sparkd.fleet.nodes import Node
from sparkd.gang import machine
from sparkd.gang.record import GangRecord
from sparkd.gang.state import Gang, Tick, World
from sparkd.records.fall import Fall
from sparkd.records.report import Exit, RankReport, Sample
from sparkd.records.verdict import Severity, Verdict
from tests.unit.gang.test_mods import gang

NCCL = "gpu-1:812:901 [0] NCCL WARN socketProgress: Connection closed by remote peer spark-2<41822>"
LAUNCHER = "Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor."
VICTIM = Exit("sparkd-d-g1-r1", "VLLM::Worker_TP1", 18197, None, 9, "log", at=100.025, mono=50.0)


def fallen(rank: int, exit_: Exit | None, *lines: str) -> RankReport:
    return RankReport(f"sparkd-d-g1-r{rank}", "fallen", exit=exit_, fell="it ended", lines=lines)


def named(*reports: RankReport, error_s: float = 0.001, sample: Sample | None = None) -> GangRecord:
    return after(gang("loading"), *reports, error_s=error_s, sample=sample).record


def after(
    before: Gang, *reports: RankReport | None, error_s: float = 0.001, sample: Sample | None = None
) -> Gang:
    """One step of the gang, with what each node says of its rank."""
    nodes = {
        name: Node(
            name,
            f"node-{name}",
            greeted=True,
            heard=10.0,
            state="alive",
            reports={report.name: report} if report else {},
            clock_error_s=error_s,
            sample=sample,
        )
        for name, report in zip("ab", reports, strict=True)
    }
    stepped, _ = machine.step(before, Tick(), World(nodes), Instant(10.0, 110.0))
    assert isinstance(stepped, Gang)
    return stepped


def fall_of(record: GangRecord) -> Fall:
    assert record.fall is not None
    return record.fall


@pytest.mark.parametrize("code", [0, 1])
def test_the_victim_is_named_although_the_survivor_cried_out_25_ms_before(code: int) -> None:
    survivor = Exit("sparkd-d-g1-r0", "VLLM::Worker_TP0", 7, code, None, "pidfd", at=100.000, mono=50.0)
    fall = fall_of(named(fallen(0, survivor, NCCL), fallen(1, VICTIM, LAUNCHER)))
    assert (fall.rank, fall.node, fall.cause) == (1, "node-b", "PROCESS_KILLED")
    assert fall.beside == ()


def test_the_victim_stays_the_cause_when_its_node_has_nothing_more_to_say_of_it() -> None:
    """What the survivor's agent learns later makes it no more the cause than it was."""
    ended = Exit("sparkd-d-g1-r0", "VLLM::EngineCore", 7, 1, None, "pidfd", at=100.010, mono=50.0)
    told = after(gang("loading"), fallen(0, None), fallen(1, VICTIM))
    assert fall_of(told.record).rank == 1
    assert fall_of(after(told, fallen(0, ended), None).record).rank == 1


def test_what_no_retry_cures_is_taken_back_when_it_only_followed_from_a_death() -> None:
    lost = Exit("sparkd-d-g1-r1", "leader", 9, 1, None, "shim", at=100.020, mono=50.0)
    missing = "FileNotFoundError: [Errno 2] No such file or directory: '/models/x/config.json'"
    gave_up = after(gang("loading"), None, fallen(1, lost, missing))
    assert (fall_of(gave_up.record).cause, gave_up.record.ending) == ("MODEL_MISSING", "failed")
    killed = Exit("sparkd-d-g1-r0", "VLLM::Worker_TP0", 7, None, 9, "pidfd", at=100.000, mono=50.0)
    again = after(gave_up, fallen(0, killed), fallen(1, lost, missing)).record
    assert fall_of(again).rank == 0
    assert again.phase == "recovering"
    assert "a retry cannot cure" not in again.reason


def test_two_that_died_closer_together_than_the_clocks_tell_are_both_named() -> None:
    other = Exit("sparkd-d-g1-r0", "VLLM::Worker_TP0", 7, None, 9, "pidfd", at=100.020, mono=50.0)
    record = named(fallen(0, other), fallen(1, VICTIM), error_s=0.02)
    assert fall_of(record).rank == 0
    assert [one.rank for one in fall_of(record).beside] == [1]
    assert "in the same moment rank 1 on node-b" in record.reason


def test_what_a_rank_said_explains_more_than_the_signal_that_followed() -> None:
    fall = fall_of(named(fallen(0, None), fallen(1, VICTIM, "torch.OutOfMemoryError: CUDA out of memory.")))
    assert (fall.rank, fall.cause) == (1, "CUDA_OOM")


@pytest.mark.parametrize(("pid", "cause"), [(18197, "KERNEL_OOM"), (4711, "PROCESS_KILLED")])
def test_the_kernel_is_the_cause_only_if_it_names_the_process(pid: int, cause: str) -> None:
    struck = Verdict(
        "KERNEL_OOM",
        Severity.WARN,
        "the kernel's OOM killer has struck",
        evidence=f"Out of memory: Killed process {pid} (VLLM::Worker_TP) total-vm:91234kB",
    )
    fall = fall_of(named(fallen(0, None), fallen(1, VICTIM, LAUNCHER), sample=Sample(verdicts=(struck,))))
    assert (fall.rank, fall.cause) == (1, cause)


def test_the_kernels_word_may_come_late_and_stays_when_newer_ones_push_it_out() -> None:
    struck = Verdict(
        "KERNEL_OOM",
        Severity.WARN,
        "the kernel's OOM killer has struck",
        evidence="Out of memory: Killed process 18197 (VLLM::Worker_TP) total-vm:91234kB",
    )
    reports = (fallen(0, None), fallen(1, VICTIM, LAUNCHER))
    told = after(gang("loading"), *reports)
    assert fall_of(told.record).cause == "PROCESS_KILLED"
    late = after(told, *reports, sample=Sample(verdicts=(struck,)))
    assert fall_of(late.record).cause == "KERNEL_OOM"
    assert late.record.budget.memory_spent == 1
    newer = after(late, *reports)
    assert fall_of(newer.record).cause == "KERNEL_OOM"
    assert newer.record.budget.memory_spent == 1
