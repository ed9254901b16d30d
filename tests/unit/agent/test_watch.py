"""The watch over a laid-out node: what it tells, whom it condemns, what it drops."""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from sparkd.clock import Instant
from sparkd.detect.gpu import GpuLook, GpuProcess
from sparkd.records.defaults import DEFAULTS, GIB
from sparkd.records.rank import MemoryNeed
from sparkd.records.report import Condemned
from sparkd_agent.watch.cache import Cache
from sparkd_agent.watch.sample import Sampler
from sparkd_agent.watch.watch import Surroundings, Watch, Watched

NEED = MemoryNeed(
    need_bytes=100 * GIB,
    use_bytes=90 * GIB,
    load_spike_bytes=19 * GIB,
    floor_loading_bytes=2 * GIB,
    floor_serving_bytes=4 * GIB,
)
RANK = Watched("sparkd-d-g1-r0", "serving", 300.0, NEED, 110 * GIB, None, None)
TOTAL = int(121.7 * GIB)


@dataclass
class Recorder:
    """What the watch asked for; it is the clock as well."""

    rank: Watched | None = RANK
    told: list[tuple[str, str]] = field(default_factory=list)
    condemned: list[tuple[str, Condemned, bool]] = field(default_factory=list)
    mono: float = 1000.0

    def watched(self) -> Watched | None:
        return self.rank

    def tell(self, kind: str, reason: str, rank: str | None) -> None:
        self.told.append((kind, reason))

    def condemn(self, rank: str, why: Condemned, *, at_once: bool) -> None:
        self.condemned.append((rank, why, at_once))

    def now(self) -> Instant:
        return Instant(self.mono, self.mono)

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.told]


class GpuOf:
    def __init__(self, look: GpuLook | None) -> None:
        self.look = look
        self.often = False

    def looks(self, at: float) -> tuple[GpuLook, ...] | None:
        return None if self.look is None else (replace(self.look, at=at),)

    def state(self, _: float) -> str | None:
        return "NVML has not answered for 60 s: the driver may be stuck" if self.look is None else None

    def close(self) -> None:
        pass


@dataclass
class Bed:
    folder: Path
    acts: Recorder = field(default_factory=Recorder)
    around: Surroundings = field(default_factory=lambda: Surroundings(Cache(None, "it is not root")))

    def __post_init__(self) -> None:
        (self.folder / "pressure").mkdir()
        (self.folder / "kmsg").touch()
        self.lay(60.0)
        self.watch = Watch(self.acts, Sampler(self.folder, self.folder / "kmsg"), self.around, self.acts)

    def lay(self, available: float, free: float | None = None, full_us: int = 0) -> None:
        kib = {"MemTotal": TOTAL, "MemFree": (free or available) * GIB, "MemAvailable": available * GIB}
        text = "".join(f"{name}:    {int(value) // 1024} kB\n" for name, value in kib.items())
        (self.folder / "meminfo").write_text(text)
        pressure = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={full_us}\n"
        (self.folder / "pressure" / "memory").write_text(pressure + pressure.replace("some", "full"))

    def seconds(self, count: int, step: Callable[[int], None] = lambda _: None) -> None:
        """Looks, one a second."""

        async def run() -> None:
            for second in range(count):
                step(second)
                self.acts.mono += 1.0
                self.watch.look()
                for _ in range(200):
                    tasks = (self.watch._evicting, self.watch._reading, self.watch._sweeping)
                    if all(busy is None or busy.done() for busy in tasks):
                        break
                    await asyncio.sleep(0.005)

        asyncio.run(run())

    def verdicts(self) -> list[str]:
        return [verdict.id for verdict in self.watch.sample.verdicts]


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(tmp_path)


def test_a_healthy_node_is_left_alone(bed: Bed) -> None:
    bed.seconds(30)
    assert (bed.acts.told, bed.acts.condemned, bed.verdicts()) == ([], [], [])
    assert bed.watch.sample.memory is not None
    assert (bed.watch.sample.gpu, bed.watch.sample.shed) == ({}, None)


def test_thrash_is_shed_then_condemned_with_value_floor_and_phase(bed: Bed) -> None:
    bed.seconds(5)
    bed.seconds(6, lambda second: bed.lay(3.0, full_us=300_000 * (second + 1)))
    assert bed.acts.kinds() == ["shed"]
    rank, why, at_once = bed.acts.condemned[0]
    assert (rank, why.cause, at_once) == (RANK.name, "MEMORY_THRASH", False)
    for _, text in [*bed.acts.told, ("", why.reason)]:
        assert "MemAvailable 3.0 GiB, floor 4.0 GiB (serving)" in text
    assert "nothing enforces this until there is a gateway" in dict(bed.acts.told)["shed"]
    assert bed.watch.sample.shed is not None
    assert bed.verdicts() == ["MEMORY_THRASH"]


def test_the_seeds_signature_is_named_also_of_a_uvm_thread_that_came_late(bed: Bed) -> None:
    """Under 2 GiB free and a busy UVM thread, which is younger than the last scan."""

    def kernel_thread(pid: int, name: str, ticks: int) -> None:
        (bed.folder / str(pid)).mkdir(exist_ok=True)
        fields = f"S 2 0 0 0 -1 {0x208040} 0 0 0 0 {ticks} 0 0 0 20 0 1 0 {1000 + pid} 0 0"
        (bed.folder / str(pid) / "stat").write_text(f"{pid} ({name}) {fields}\n")

    kernel_thread(2, "kthreadd", 0)
    bed.seconds(5)
    bed.lay(1.6)
    bed.seconds(10, lambda second: kernel_thread(970, "UVM GPU1 BH", 85 * second))
    (_, why, _), *_ = bed.acts.condemned
    assert why.cause == "UVM_THRASH"
    assert "UVM GPU1 BH at 85 % of a core" in why.reason


def test_the_same_while_loading_has_the_other_floor(bed: Bed) -> None:
    bed.acts.rank = replace(RANK, phase="loading", loaded_s=None)
    bed.seconds(5)
    bed.seconds(6, lambda second: bed.lay(3.0, full_us=300_000 * (second + 1)))
    assert bed.acts.condemned == []
    bed.seconds(6, lambda second: bed.lay(1.5, full_us=1_800_000 + 300_000 * (second + 1)))
    assert "MemAvailable 1.5 GiB, floor 2.0 GiB (loading)" in bed.acts.condemned[0][1].reason


def test_hardly_any_memory_is_no_time_to_ask(bed: Bed) -> None:
    bed.lay(0.8)
    bed.seconds(2)
    assert {(why.cause, at_once) for _, why, at_once in bed.acts.condemned} == {("MEMORY_CRITICAL", True)}


def test_a_kernel_line_of_the_driver(bed: Bed) -> None:
    bed.lay(2.9)
    with (bed.folder / "kmsg").open("a") as log:
        log.write("4,1,1,-;NVRM: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)\n")
    bed.seconds(1)
    assert [(why.cause, at_once) for _, why, at_once in bed.acts.condemned] == [("HOST_WEDGE_NVRM", True)]


def test_where_the_kernels_log_may_not_be_read_its_counter_tells_of_oom_kills(bed: Bed) -> None:
    (bed.folder / "vmstat").write_text("oom_kill 4\n")
    (bed.folder / "kmsg").unlink()
    bed.watch = Watch(bed.acts, Sampler(bed.folder, bed.folder / "kmsg"), bed.around, bed.acts)
    bed.seconds(3)
    assert bed.verdicts() == []
    (bed.folder / "vmstat").write_text("oom_kill 6\n")
    bed.seconds(1)
    assert bed.verdicts() == ["KERNEL_OOM"]
    assert bed.watch.sample.verdicts[0].evidence.startswith("2 since this rank began")


def test_a_fall_to_the_floor_is_ended_unless_the_plan_explains_it(bed: Bed) -> None:
    bed.acts.rank = replace(RANK, phase="warming", loaded_s=400.0)
    bed.seconds(5)
    bed.seconds(30, lambda second: bed.lay(60 - 1.3 * second))  # down to 22.3: the plan says 20
    assert bed.acts.condemned == []
    bed.seconds(6, lambda second: bed.lay(22.3 - 3.2 * second))
    assert bed.acts.condemned == []  # 3 s are left
    bed.seconds(3, lambda second: bed.lay(6.0 - 1.5 * second))
    assert {(why.cause, at_once) for _, why, at_once in bed.acts.condemned} == {("MEMORY_PLUNGE", True)}


def test_the_next_rank_is_judged_anew(bed: Bed) -> None:
    bed.lay(0.8)
    bed.seconds(2)
    bed.acts.condemned.clear()
    bed.acts.rank = None
    bed.lay(100.0)
    bed.seconds(1)
    bed.acts.rank = replace(RANK, name="sparkd-d-g2-r0", phase="launching", loaded_s=None)
    bed.seconds(3)
    assert bed.acts.condemned == []
    assert bed.watch.sample.shed is None


def test_admitted_again_when_memory_is_back(bed: Bed) -> None:
    bed.lay(3.0)
    bed.seconds(4)
    bed.lay(30.0)
    bed.seconds(12)
    assert bed.acts.kinds() == ["shed", "admit"]
    assert bed.acts.told[-1][1].startswith("MemAvailable 30.0 GiB, floor 4.0 GiB (serving): well above it")
    assert bed.watch.sample.shed is None


def available_at(bed: Bed, gib: float) -> float:
    """What the next report tells, a second later, of a node with so much, in GiB."""
    bed.lay(gib)
    bed.acts.mono += 1.0
    memory = bed.watch.fresh().memory
    assert memory is not None
    return memory.available / GIB


def told_of(bed: Bed, seconds: int) -> list[float]:
    """In so many reports, of a node that has a GiB less each second."""

    async def run() -> list[float]:
        return [available_at(bed, 50.0 - second) for second in range(seconds)]

    return asyncio.run(run())


def test_while_nothing_runs_reports_give_the_time_for_looks(tmp_path: Path) -> None:
    bed = Bed(tmp_path, Recorder(None))
    bed.seconds(1)
    told = told_of(bed, 12)
    ages = [50.0 - second - seen for second, seen in enumerate(told[2:], 2)]
    assert -max(DEFAULTS.watch_idle_s, 0) < min(ages) <= max(ages) <= 0, (
        "none is older than a look's own pause"
    )
    assert 3 <= len(set(told)) <= 6, "and not every report looks"
    bed.acts.rank = RANK
    assert told_of(bed, 1) == [50.0], "a rank has come"
    assert told_of(bed, 3) == [50.0] * 3, "with a rank the watch looks by itself"


def test_a_look_that_comes_late_says_by_how_much_whoever_took_it(tmp_path: Path) -> None:
    bed = Bed(tmp_path, Recorder(None))

    async def run() -> list[float]:
        watching = asyncio.create_task(bed.watch.run())
        await asyncio.sleep(0)
        late = []
        for pause in (10.0, 3.0):
            bed.acts.mono += pause
            bed.watch.fresh()
            late.append(bed.watch.late_s)
        watching.cancel()
        return late

    assert asyncio.run(run()) == [10.0 - DEFAULTS.watch_idle_s, 0.0]


def test_memory_that_comes_back_is_told_at_once(tmp_path: Path) -> None:
    """Whoever starts the next generation waits for it."""
    bed = Bed(tmp_path)
    bed.seconds(1)
    bed.acts.rank = None
    bed.seconds(1)
    assert told_of(bed, 5) == [50.0, 49.0, 48.0, 47.0, 46.0]
    bed.seconds(int(DEFAULTS.watch_brisk_s))
    assert len(set(told_of(bed, 9))) < 9


def test_every_report_looks_while_memory_is_short(tmp_path: Path) -> None:
    bed = Bed(tmp_path, Recorder(None))
    bed.lay(0.5)
    bed.seconds(5)
    assert bed.watch.thrash.grade != "calm"

    async def run() -> list[float]:
        return [available_at(bed, 0.5 - step / 16) for step in range(4)]

    told = asyncio.run(run())
    assert len(set(told)) == 4, told


# Page cache --------------------------------------------------------------------------------------------


@pytest.fixture
def control(tmp_path: Path) -> Path:
    path = tmp_path / "drop_caches"
    path.touch()
    return path


def test_cache_is_dropped_while_loading_every_minute(tmp_path: Path, control: Path) -> None:
    checkpoint = tmp_path / "model"
    checkpoint.mkdir()
    (checkpoint / "a.safetensors").write_bytes(b"x" * 4096)
    proc = tmp_path / "proc"
    proc.mkdir()
    bed = Bed(proc, around=Surroundings(Cache(control)))
    bed.acts.rank = replace(RANK, phase="loading", loaded_s=None, checkpoint=checkpoint)
    bed.lay(60.0, free=2.0)
    bed.seconds(1)
    assert control.read_text() == "1\n"
    assert bed.acts.kinds() == ["evict"]
    assert bed.acts.told[0][1].startswith(
        "dropped the page cache, MemFree 2.0 GiB -> 2.0 GiB: MemAvailable 60.0 GiB, floor 2.0 GiB (loading): "
        "MemFree 2.0 GiB is below the load spike of 19.0 GiB"
    )
    bed.seconds(58)
    assert bed.acts.kinds() == ["evict"]
    bed.seconds(2)
    assert bed.acts.kinds() == ["evict"] * 2


def test_who_may_not_drop_the_cache_says_so(bed: Bed) -> None:
    bed.lay(3.0, free=1.0)
    bed.seconds(1)
    assert "dropped the checkpoint's pages only (it is not root)" in dict(bed.acts.told)["evict"]


def test_the_coordinator_may_ask_for_it(tmp_path: Path, control: Path) -> None:
    proc = tmp_path / "proc"
    proc.mkdir()
    bed = Bed(proc, around=Surroundings(Cache(control)))
    bed.seconds(1)
    assert asyncio.run(bed.watch.drop_cache("it waits")) is None
    assert control.read_text() == "1\n"
    assert "floor 4.0 GiB (serving): it waits" in dict(bed.acts.told)["evict"]
    bed.around.cache = Cache(None, "it is not root")
    assert asyncio.run(bed.watch.drop_cache("it waits")) == "it is not root"


def test_without_any_cache_there_is_nothing_to_drop(bed: Bed) -> None:
    bed.lay(3.0)
    bed.seconds(5)
    assert bed.acts.kinds() == ["shed"]


def test_room_is_made_before_a_rank_starts(tmp_path: Path, control: Path) -> None:
    proc = tmp_path / "proc"
    proc.mkdir()
    bed = Bed(proc, Recorder(None), Surroundings(Cache(control)))
    bed.lay(113.0, free=40.0)
    bed.seconds(1)
    asyncio.run(bed.watch.make_room(NEED, None))
    assert control.read_text() == "1\n"
    told = dict(bed.acts.told)["evict"]
    assert "floor 2.0 GiB (before a start): 100.0 GiB are needed by a rank that is to start" in told
    control.write_text("")
    bed.lay(113.0)
    bed.seconds(1)
    asyncio.run(bed.watch.make_room(NEED, None))
    assert control.read_text() == ""


# GPU, fabric, node -------------------------------------------------------------------------------------


def test_gpu_numbers_and_what_follows_from_them(tmp_path: Path) -> None:
    gb10 = GpuLook(0.0, 0, "NVIDIA GB10", 96.0, 799.0, 19.5, 51.0, 0, processes=(GpuProcess(7, 100 * GIB),))
    bed = Bed(tmp_path, around=Surroundings(Cache(None), GpuOf(gb10)))
    bed.seconds(30)
    assert bed.around.gpu is not None
    assert bed.around.gpu.often
    assert bed.watch.sample.gpu == {
        "utilization": 96.0,
        "sm_mhz": 799.0,
        "watts": 19.5,
        "celsius": 51.0,
        "memory_of_processes": 100.0 * GIB,
    }
    assert bed.verdicts() == ["LOW_POWER_STUCK"]


def test_a_gpu_that_does_not_answer_is_unknown(tmp_path: Path) -> None:
    bed = Bed(tmp_path, around=Surroundings(Cache(None), GpuOf(None)))
    bed.seconds(2)
    assert (bed.watch.sample.gpu, bed.verdicts()) == ({}, ["GPU_UNKNOWN"])


def test_the_fabric_is_judged_from_the_rank_s_beginning(tmp_path: Path) -> None:
    netdev = tmp_path / "sys" / "class" / "net" / "fab0"
    netdev.mkdir(parents=True)
    (netdev / "mtu").write_text("9000\n")
    proc = tmp_path / "proc"
    proc.mkdir()
    bed = Bed(proc, around=Surroundings(Cache(None), sys=tmp_path / "sys"))
    bed.acts.rank = replace(RANK, interface="fab0")
    bed.seconds(10)
    (netdev / "mtu").write_text("1500\n")
    bed.seconds(10)
    assert bed.verdicts() == ["MTU_CHANGED"]
    bed.acts.rank = replace(RANK, name="sparkd-d-g2-r0", interface="fab0")
    bed.seconds(10)
    assert bed.verdicts() == []
    bed.acts.rank = replace(RANK, name="sparkd-d-g3-r0")
    bed.seconds(10)
    (netdev / "mtu").write_text("9000\n")
    bed.seconds(10)
    assert bed.verdicts() == [], "a rank on loopback has no interface that could fail"


def test_a_driver_that_hangs_holds_up_nothing_and_is_told_of(tmp_path: Path) -> None:
    """A pipe that nobody writes to stands for a file of its: whoever opens it waits."""
    netdev = tmp_path / "sys" / "class" / "net" / "fab0"
    netdev.mkdir(parents=True)
    os.mkfifo(netdev / "mtu")
    (tmp_path / "proc").mkdir()
    bed = Bed(tmp_path / "proc", around=Surroundings(Cache(None), sys=tmp_path / "sys"))
    bed.acts.rank = replace(RANK, interface="fab0")

    async def run() -> None:
        before = threading.active_count()
        try:
            for _ in range(int(10 * DEFAULTS.fabric_look_s)):
                bed.acts.mono += 1.0
                bed.watch.look()
                await asyncio.sleep(0)
            # Another one is the sweep's.
            assert threading.active_count() <= before + 2, "one thread, however often it is tried"
            assert bed.verdicts() == ["FABRIC_UNREADABLE"]
            assert "fab0" in bed.watch.sample.verdicts[0].title
        finally:
            await answer(netdev / "mtu", b"9000\n")
        reading = bed.watch._reading
        assert reading is not None
        await asyncio.wait_for(reading, 10)
        bed.acts.mono += 1.0
        bed.watch.look()
        assert bed.verdicts() == []

    asyncio.run(run())


async def answer(pipe: Path, text: bytes) -> None:
    """To whoever waits for it; the next one finds nothing to wait for."""
    for _ in range(2000):
        with contextlib.suppress(OSError):  # nobody has come to it yet
            writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            pipe.unlink()
            os.write(writer, text)
            os.close(writer)
            return
        await asyncio.sleep(0.005)


def test_what_is_read_of_one_rank_s_network_says_nothing_of_the_next(tmp_path: Path) -> None:
    netdev = tmp_path / "sys" / "class" / "net" / "fab0"
    netdev.mkdir(parents=True)
    (netdev / "carrier").write_text("0")
    (tmp_path / "proc").mkdir()
    bed = Bed(tmp_path / "proc", around=Surroundings(Cache(None), sys=tmp_path / "sys"))
    bed.acts.rank = replace(RANK, interface="fab0")
    bed.seconds(2)
    assert bed.verdicts() == ["FABRIC_DOWN"]

    async def run() -> None:
        bed.acts.mono += DEFAULTS.fabric_look_s
        bed.watch.look()  # it is being read
        bed.acts.rank = replace(RANK, name="sparkd-d-g2-r0")
        bed.watch.look()
        reading = bed.watch._reading
        assert reading is not None
        await asyncio.wait_for(reading, 10)

    asyncio.run(run())
    bed.seconds(1)
    assert bed.verdicts() == []


def test_the_node_is_looked_at_once_a_minute(tmp_path: Path) -> None:
    around = Surroundings(Cache(None), versions=lambda: ("580.95.05", "580.142"))
    bed = Bed(tmp_path, around=around)
    bed.seconds(2)
    assert bed.verdicts() == ["DRIVER_MISMATCH"]
    around.versions = lambda: ("580.142", "580.142")
    bed.seconds(int(DEFAULTS.node_look_s) - 2)
    assert bed.verdicts() == ["DRIVER_MISMATCH"]
    bed.seconds(3)
    assert bed.verdicts() == []


def test_stale_shared_memory_is_found_while_no_rank_runs(tmp_path: Path) -> None:
    around = Surroundings(Cache(None), stale_shm=lambda: [("psm_1", 3 * GIB)])
    bed = Bed(tmp_path, Recorder(None), around)

    async def run() -> None:
        for _ in range(3):
            bed.acts.mono += 1.0
            bed.watch.look()
            await asyncio.sleep(0.05)

    asyncio.run(run())
    assert bed.verdicts() == ["STALE_SHM"]
