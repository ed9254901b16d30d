"""The lanes: each a gang of its own in two rooms of its own, so that they run side by side."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from benchmarks.gpu_lab import scenarios as do
from benchmarks.gpu_lab.cluster import cluster
from benchmarks.gpu_lab.scenarios import FAULTS, Bench
from tests.bed.local_set import Watch

_LONGEST, _PIECE = 40_960, 32
"""Tokens: of a context, and of one step."""
_REBOOT_S = 60.0
"""Less time than that is no use to a fault that ends in a new boot."""


def _served(bench: Bench, faults: tuple[str, ...]) -> None:
    with cluster(bench.folder / "sparkd", bench.rooms, bench.setting) as made:
        deployment = do.bring_up(bench, made)
        watch = Watch(made.client, bench.lane)
        try:
            bench.say(f"a completion: {do.api_of(bench, deployment).complete('hello', 8)} tokens of 8")
            do.transport(bench, made)
            for name in faults:
                if bench.has_time(_REBOOT_S, FAULTS[name].name):
                    do.with_fault(bench, deployment, watch, FAULTS[name])
        finally:
            do.keep_records(bench, made, deployment)
            do.take_down(bench, made, deployment)


def _steady(bench: Bench) -> None:
    with cluster(bench.folder / "sparkd", bench.rooms, bench.setting) as made:
        do.fabric(bench, made)
        deployment = do.bring_up(bench, made)
        watch = Watch(made.client, bench.lane)
        try:
            do.transport(bench, made)
            for prompts in (1, 8):
                do.long_prefill(bench, deployment, watch, prompts)
            do.steadily(bench, made, deployment, watch, min(180.0, bench.left_s() - 30.0))
        finally:
            do.keep_records(bench, made, deployment)
            do.take_down(bench, made, deployment)


def _refused(bench: Bench) -> None:
    with cluster(bench.folder / "sparkd", bench.rooms, bench.setting) as made:
        do.refusal(bench, made)


def _prefill(bench: Bench) -> None:
    """A prompt that is read in small pieces: a minute without a token, and nothing is wrong."""
    bench = replace(bench, setting=replace(bench.setting, max_len=_LONGEST))
    with cluster(bench.folder / "sparkd", bench.rooms, bench.setting) as made:
        deployment = do.bring_up(bench, made, "--set", f"engine.args.max-num-batched-tokens={_PIECE}")
        watch = Watch(made.client, bench.lane)
        try:
            do.long_prefill(bench, deployment, watch, 1)
        finally:
            do.keep_records(bench, made, deployment)
            do.take_down(bench, made, deployment)


def _bare(bench: Bench, *faults: tuple[str, int | None, float]) -> None:
    for name, timeout_s, watch_s in faults:
        if bench.has_time(_REBOOT_S + watch_s / 2, f"bare vLLM, {FAULTS[name].name}"):
            do.without(bench, FAULTS[name], timeout_s, watch_s)


@dataclass(frozen=True, slots=True)
class Lane:
    number: int
    """Of its rooms' network."""
    run: Callable[[Bench], None]
    what: str


LANES = {
    "smoke": Lane(1, lambda b: _served(b, ("worker",)), "sparkd: up, a completion, one killed worker, down"),
    "worker": Lane(2, lambda b: _served(b, ("worker",) * 3), "sparkd: rank 1's worker killed three times"),
    "core": Lane(
        3, lambda b: _served(b, ("core",) * 3 + ("term",)), "sparkd: EngineCore killed, then SIGTERM"
    ),
    "still": Lane(4, lambda b: _served(b, ("stop", "link")), "sparkd: a stopped worker, a link down"),
    "steady": Lane(5, _steady, "sparkd: the fabric, the watch, three minutes of decoding, long prefills"),
    "refused": Lane(9, _refused, "sparkd: a profile that requires RDMA, which is not there"),
    "prefill": Lane(10, _prefill, "sparkd: one long prefill, 32 tokens a step"),
    "bare-killed": Lane(
        6,
        lambda b: _bare(b, ("term", 25, 40.0), ("worker", 25, 45.0), ("core", 25, 20.0)),
        "bare vLLM: worker, EngineCore, SIGTERM; execute timeout 25 s",
    ),
    "bare-still": Lane(
        7,
        lambda b: _bare(b, ("stop", 25, 75.0), ("link", 25, 75.0)),
        "bare vLLM: a stopped worker, a link down; execute timeout 25 s",
    ),
    "bare-default": Lane(
        8, lambda b: _bare(b, ("worker", None, 330.0)), "bare vLLM: rank 1's worker killed, default timeout"
    ),
}
