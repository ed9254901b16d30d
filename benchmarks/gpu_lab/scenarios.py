"""What is done to two ranks, and the one line of figures that comes of it."""

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu_lab.bare import bare_pair
from benchmarks.gpu_lab.cluster import WAIVED, Cluster
from benchmarks.gpu_lab.rooms import Room
from benchmarks.gpu_lab.seen import Api, Card, Gone, Health, Stream, seconds, shown, until
from benchmarks.gpu_lab.setting import Setting
from sparkd.errors import SparkdError
from sparkd.records.defaults import MIB
from tests.bed.idle import measure_idle
from tests.bed.local_set import Deployment, Process, Watch, processes_of

FAULT_S = 60.0
"""How long a process stands still, or a link is down."""
BOOT_S = 260.0


@dataclass(frozen=True, slots=True)
class Fault:
    """`begin` does it to the ranks that `find` shows; `end` takes it back after FAULT_S, if it can be."""

    name: str
    begin: Callable[[Callable[[int, str], Process], tuple[Room, Room]], object]
    end: Callable[[object, tuple[Room, Room]], None] | None = None


def _signal(rank: int, title: str, number: int) -> Callable[..., Process]:
    def act(find: Callable[[int, str], Process], _rooms: tuple[Room, Room]) -> Process:
        found = find(rank, title)
        os.kill(found.pid, number)
        return found

    return act


def _resume(stopped: object, _rooms: tuple[Room, Room]) -> None:
    if isinstance(stopped, Process) and stopped.alive:
        os.kill(stopped.pid, signal.SIGCONT)


FAULTS = {
    "worker": Fault("SIGKILL of rank 1's worker", _signal(1, "VLLM::Worker", signal.SIGKILL)),
    "core": Fault("SIGKILL of EngineCore", _signal(0, "VLLM::EngineCore", signal.SIGKILL)),
    "term": Fault("SIGTERM to rank 0's launcher", _signal(0, "leader", signal.SIGTERM)),
    "stop": Fault("SIGSTOP of rank 1's worker, 60 s", _signal(1, "VLLM::Worker", signal.SIGSTOP), _resume),
    "link": Fault(
        "rank 1's link down, 60 s",
        lambda _find, rooms: rooms[1].link(up=False),
        lambda _done, rooms: rooms[1].link(up=True),
    ),
}


@dataclass
class Bench:
    """Where a lane stands: two rooms, the card, a folder, and somebody who hears each line."""

    lane: str
    rooms: tuple[Room, Room]
    folder: Path
    setting: Setting
    card: Card
    say: Callable[[str], None]
    deadline: float

    def left_s(self) -> float:
        return self.deadline - time.monotonic()

    def has_time(self, seconds_: float, what: str) -> bool:
        if self.left_s() >= seconds_:
            return True
        self.say(f"{what}: not begun, {self.left_s():.0f} s are left")
        return False

    def stream(self, port: int, model: str) -> Stream:
        """In flight, for as long as the context allows."""
        return Stream(self.rooms[0], port, model, self.setting.max_len - 100).begun()

    def on_card(self, processes: list[Process]) -> str:
        """What these hold of it."""
        held = self.card.held()
        if held is None:
            return "card unknown"
        mine = {one.pid: one.title.split()[0] for one in processes if one.pid in held}
        return ", ".join(f"{title} {held[pid] // MIB} MiB" for pid, title in mine.items()) or "nothing on it"


def later(seconds_: float, act: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(seconds_, act)
    timer.daemon = True
    timer.start()
    return timer


# With sparkd.


def bring_up(bench: Bench, cluster: Cluster, *more: str) -> Deployment:
    """`more`: further words of `sparkd up`."""
    begun = time.monotonic()
    waived = list(WAIVED)
    while True:
        words = [word for id_ in waived for word in ("--force", id_)]
        limit = max(30.0, min(BOOT_S, bench.left_s()))
        done = cluster.run("up", *bench.setting.up, *more, "--name", bench.lane, *words, timeout_s=limit)
        text = done.stdout + done.stderr
        _write(bench, "up.txt", text)
        if done.returncode == 0:
            break
        bench.say(f"sparkd up: exit code {done.returncode}: {text[-1500:]}")
        # A collective that fails here is a finding, and no reason to learn nothing else.
        found = sorted(set(re.findall(r"block (COLLECTIVE_\w+)", text)) - set(waived))
        if not found:
            raise RuntimeError("sparkd up failed")
        bench.say(f"again, without {', '.join(found)}")
        cluster.run("down", bench.lane, timeout_s=60.0)
        waived += found
    deployment = Deployment(cluster, bench.lane)  # type: ignore[arg-type]
    took = time.monotonic() - begun
    bench.say(f"sparkd up: ready after {took:.1f} s; {bench.on_card(everything(deployment))}")
    return deployment


def everything(deployment: Deployment, generation: int | None = None) -> list[Process]:
    generation = generation or deployment.status().generation
    return [p for rank in (0, 1) for p in processes_of(deployment.rank_name(rank, generation))]


def api_of(bench: Bench, deployment: Deployment) -> Api:
    return Api(bench.rooms[0], port_of(deployment), bench.lane)


def port_of(deployment: Deployment) -> int:
    endpoint = deployment.status().endpoint
    if endpoint is None:
        raise RuntimeError("the deployment has no endpoint")
    return int(endpoint.base_url.split(":")[2].split("/")[0])


def with_fault(bench: Bench, deployment: Deployment, watch: Watch, fault: Fault) -> None:
    """With a stream in flight: how the gang falls, is gone, and is ready again."""
    generation = deployment.status().generation
    before = everything(deployment, generation)
    stream = bench.stream(port_of(deployment), bench.lane)
    time.sleep(2.0)
    since = time.monotonic()
    done = fault.begin(deployment.process, bench.rooms)
    end = fault.end
    if end is not None:
        later(FAULT_S, lambda: end(done, bench.rooms))
    gone = Gone(before, since, bench.card, 180.0)
    limit = min(BOOT_S, bench.left_s())
    known = _when(watch, "recovering", since, limit)
    ready = _when(watch, "ready", known or since, limit) if known is not None else None
    client = stream.in_words(since)
    gone.wait()
    now = deployment.status()
    fall = now.last_fall
    bench.say(
        f"{fault.name}: recovering {_after(known, since)}, {gone.in_words()}, ready {_after(ready, since)} "
        f"(generation {now.generation}); client: {client}; orphans: {_orphans(deployment, generation)}"
    )
    bench.say(f"   verdict: {fall.cause if fall else None}: {fall.reason if fall else now.reason}")
    _write(bench, f"events-g{generation}.txt", "\n".join(_events(watch, since)))
    if ready is None:
        raise RuntimeError(f"not ready again: {now.phase}, {now.reason}, {now.waiting_for}")


def _when(watch: Watch, phase: str, after: float, limit: float) -> float | None:
    try:
        return watch.reached(phase, after, limit)
    except AssertionError:
        return None


def _after(moment: float | None, since: float) -> str:
    return seconds(None if moment is None else moment - since)


def _orphans(deployment: Deployment, generation: int) -> str:
    return ", ".join(shown(one) for one in everything(deployment, generation)) or "none"


def _events(watch: Watch, since: float) -> list[str]:
    return [
        f"{at - since:9.3f} {event.kind} {event.from_} -> {event.to} rank {event.rank}: {event.reason}"
        for at, event in list(watch.seen)
    ]


def _write(bench: Bench, name: str, text: str) -> None:
    (bench.folder / name).write_text(text)


def take_down(bench: Bench, cluster: Cluster, deployment: Deployment) -> None:
    left = everything(deployment)
    begun = time.monotonic()
    gone = Gone(left, begun, bench.card, 60.0)
    done = cluster.run("down", bench.lane, timeout_s=60.0)
    took = time.monotonic() - begun
    gone.wait()
    names = [name for room in bench.rooms for name in room.shared_memory()]
    bench.say(
        f"sparkd down: exit code {done.returncode} after {took:.1f} s, {gone.in_words()}; "
        f"shared memory left: {names or 'none'}"
    )


def keep_records(bench: Bench, cluster: Cluster, deployment: Deployment) -> None:
    for name, words in {
        "status.json": ("status", "-o", "json"),
        "explain.txt": ("explain", bench.lane),
        "events.txt": ("events",),
    }.items():
        _write(bench, name, cluster.run(*words, timeout_s=30.0).stdout)
    try:
        for incident in deployment.incidents():
            _write(bench, f"incident-g{incident.get('generation')}.json", json.dumps(incident, indent=1))
    except SparkdError as error:
        bench.say(f"incidents: {error}")


def steadily(bench: Bench, cluster: Cluster, deployment: Deployment, watch: Watch, for_s: float) -> None:
    """Decoding for so long, and what the watch sees and costs meanwhile."""
    since = time.monotonic()
    stream = bench.stream(port_of(deployment), bench.lane)
    costs = [measure_idle(agent.pid, min(30.0, for_s / 3)) for agent in cluster.agents]
    for name, cost in zip("ab", costs, strict=True):
        bench.say(
            f"agent {name} beside a decoding rank, {cost.seconds:.0f} s: {cost.rss_bytes / MIB:.1f} MiB, "
            f"{100 * cost.cores:.2f} % of a core, {cost.wakeups_per_s:.1f} wake-ups/s"
        )
    bench.say(f"seen: {bench.card.in_words()}; {bench.on_card(everything(deployment))}")
    for node in cluster.client.nodes():
        bench.say(f"{node.name} tells: {node.gpu}, verdicts {[one.id for one in node.verdicts]}")
    _write(bench, "agent-status.txt", "\n\n".join(cluster.agent(at, "status") for at in (0, 1)))
    count = stream.count
    while time.monotonic() < since + for_s and stream.ended is None:
        time.sleep(0.2)
    bench.say(
        f"steady decoding, {time.monotonic() - since:.0f} s: {stream.in_words(since)}, "
        f"{(stream.count - count) / max(1.0, time.monotonic() - since):.1f} tokens/s at the end; "
        f"false alarms: {alarms(watch, since)}"
    )


def alarms(watch: Watch, since: float) -> str:
    """Everything that was told since then of a gang that was well."""
    told = [f"{event.kind} {event.to or ''}: {event.reason}" for at, event in list(watch.seen) if at >= since]
    return "; ".join(told) or "0"


def long_prefill(bench: Bench, deployment: Deployment, watch: Watch, prompts: int) -> None:
    """Prompts of almost the whole context at once, no two alike: no token comes before they are read."""
    since = time.monotonic()
    size = bench.setting.max_len - 8
    api = api_of(bench, deployment)
    answers: list[int | str] = []

    def ask(number: int) -> None:
        prompt = [3 + (number * 7 + at * (number + 1)) % 300 for at in range(size)]
        answers.append(api.complete(prompt, 1, min(300.0, bench.left_s())))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(prompts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bench.say(
        f"{prompts} prompts of {size} tokens at once: {time.monotonic() - since:.1f} s, "
        f"tokens {answers}; "
        f"false alarms: {alarms(watch, since)}"
    )


def transport(bench: Bench, cluster: Cluster) -> None:
    """What the ranks' logs say of NCCL's way."""
    told = cluster.run("logs", bench.lane, timeout_s=30.0).stdout
    lines = [
        line for line in told.splitlines() if "NCCL INFO" in line and ("NET/" in line or "network" in line)
    ]
    ways = sorted(
        {
            part
            for line in lines
            for part in ("via NET/Socket", "via NET/IB", "via SHM", "via P2P")
            if part in line
        }
    )
    named = sorted({line.split("NCCL INFO", 1)[1].strip()[:60] for line in lines if "Using network" in line})
    bench.say(f"transport read back: {ways or 'nothing'}; {named}")


def fabric(bench: Bench, cluster: Cluster) -> None:
    """`sparkd fabric test` between the two rooms."""
    begun = time.monotonic()
    nodes = ",".join(room.name for room in bench.rooms)
    done = cluster.run("fabric", "test", "--nodes", nodes, timeout_s=120.0)
    _write(bench, "fabric.txt", done.stdout + done.stderr)
    bench.say(f"sparkd fabric test: exit code {done.returncode} after {time.monotonic() - begun:.1f} s")
    for line in (done.stdout + done.stderr).splitlines()[:24]:
        bench.say(f"   {line[:150]}")


def refusal(bench: Bench, cluster: Cluster) -> None:
    """A profile that requires RDMA where there is none; then forced, until NCCL has said its way."""
    asked = [*bench.setting.up, "--set", "fabric.rdma=required", "--set", "restart.budget=0"]
    waived = [word for id_ in WAIVED for word in ("--force", id_)]
    tries = {"refused": waived}
    if bench.setting.cuda:
        tries["forced"] = [*waived, "--force", "FABRIC_ABSENT"]
    for name, words in tries.items():
        begun = time.monotonic()
        limit = max(30.0, min(BOOT_S, bench.left_s() - 20.0))
        done = cluster.run("up", *asked, "--name", name, *words, timeout_s=limit)
        text = done.stdout + done.stderr
        _write(bench, f"{name}.txt", text)
        lines = [line.strip() for line in text.splitlines() if "RDMA" in line or "sockets" in line]
        told = "".join(f"\n   {line[:160]}" for line in dict.fromkeys(lines))
        bench.say(
            f"{name}, requires RDMA: exit code {done.returncode} after {time.monotonic() - begun:.1f} s{told}"
        )
        cluster.run("down", name, timeout_s=60.0)


# Without sparkd.


def without(bench: Bench, fault: Fault, timeout_s: int | None, watch_s: float) -> None:
    """One boot of bare vLLM, one fault with a stream in flight."""
    env = {} if timeout_s is None else {"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": str(timeout_s)}
    begun = time.monotonic()
    folder = bench.folder / fault.name.split(",")[0].replace(" ", "-").replace("'", "")
    with bare_pair(folder, bench.rooms, bench.setting, env) as pair:
        pair.serving(min(BOOT_S, bench.left_s()))
        before = pair.processes()
        bench.say(f"bare vLLM: /health 200 after {time.monotonic() - begun:.1f} s; {bench.on_card(before)}")
        stream = bench.stream(pair.port, "tiny")
        time.sleep(2.0)
        since = time.monotonic()

        def find(rank: int, title: str) -> Process:
            if title == "leader":
                return next(one for one in before if one.pid == pair.leaders[rank].pid)
            return pair.process(rank, title)

        asked = Health(bench.rooms[0], pair.port, since)
        done = fault.begin(find, bench.rooms)
        end = fault.end
        if end is not None:
            later(FAULT_S, lambda: end(done, bench.rooms))
        watched = min(watch_s, bench.left_s() - 10.0)
        gone = Gone(before, since, bench.card, watched)
        gone.wait()
        asked.stop()
        bench.say(
            f"bare vLLM, execute timeout {timeout_s or 'default'}: {fault.name}: /health not 200 after "
            f"{seconds(asked.known())} ({asked.in_words()}); {gone.in_words()}; watched {watched:.0f} s; "
            f"client: {stream.in_words(since)}; {pair.ends()}; {bench.on_card(before)}"
        )
    until(lambda: not any(one.alive for one in before), "what was left to be killed", 20.0)
