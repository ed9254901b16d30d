"""One rank with all that the agent knows of it: its supervisor, its way up, and for rank 0 its prober."""

import asyncio
import contextlib
import re
from collections.abc import Callable
from typing import Final

from sparkd.clock import Clock
from sparkd.detect import progress as progress_of
from sparkd.detect import wedge
from sparkd.detect.progress import ProgressSample
from sparkd.engine.collective import read_collective
from sparkd.engine.plugin import read_requests
from sparkd.engine.transport import Transport, transport_of
from sparkd.records.collective import CollectiveReport
from sparkd.records.defaults import Defaults
from sparkd.records.rank import RankSpec
from sparkd.records.report import Condemned, LogChunk, ProbeReport, RankPhase, RankReport
from sparkd_agent.logs import LogSlice, RankLog
from sparkd_agent.mods_watch import ModsWatch
from sparkd_agent.prober import Around, Prober
from sparkd_agent.procfs import ProcFs
from sparkd_agent.rankfolder import RankFolder
from sparkd_agent.runtime.base import RankHandle
from sparkd_agent.shm import ShmJanitor
from sparkd_agent.supervisor import RankSupervisor, RankView
from sparkd_agent.usage import StoppedProcess

_STACK: Final = re.compile(r"(Current thread|Thread) 0x|Stack \(most recent|  File \"|  <|  \.\.\.|$")
"""As faulthandler writes them; other lines may come between."""
_UNTOLD_LOOKS: Final = 4
"""So many looks' worth of a log waits for a coordinator that does not answer; the log itself has all."""


class RunningRank:
    """`on_change` is called within milliseconds of anything that a report should not wait for."""

    def __init__(
        self,
        handle: RankHandle,
        spec: RankSpec,
        *,
        clock: Clock,
        procfs: ProcFs,
        shm: ShmJanitor,
        on_change: Callable[["RunningRank"], None],
        limits: Defaults,
    ) -> None:
        self.spec = spec
        self.task: asyncio.Task[None] | None = None
        self.condemned: Condemned | None = None
        """Why its node must be rid of it."""
        self._clock = clock
        self._limits = limits
        self._folder = RankFolder(handle.folder)
        self._warmed_mark = self._folder.path / "warmed"
        self._log = RankLog(self._folder.log)
        self._log_at = 0
        self._unseen: list[str] = []
        self._untold: list[LogSlice] = []
        self._told_at = 0
        self._on_change = on_change
        self._supervisor = RankSupervisor(
            handle,
            spec,
            procfs=procfs,
            clock=clock,
            shm=shm,
            on_change=lambda _: on_change(self),
            limits=limits,
        )
        self._progress = progress_of.begin(clock.now().mono, spec.weights_bytes)
        self._mods = ModsWatch(read_requests(spec.env), self._log)
        self._transport: Transport | None = None
        self._collective = CollectiveReport() if spec.kind == "probe" else None
        self._gang_serves = False
        self._prober: Prober | None = None
        probe = spec.probe
        if probe is not None:
            self._prober = Prober(
                probe,
                self._folder.key(),
                warmed=self._warmed_mark.exists(),
                clock=clock,
                around=self._around,
                is_ours=lambda: self._supervisor.listens_on(probe.api.port),
                on_change=self._probe_changed,
            )
        self._probing: asyncio.Task[None] | None = None

    def _around(self) -> Around:
        view = self.view
        stopped = tuple(
            wedge.Stopped(f"rank {self.spec.rank}'s {one.title} (pid {one.pid})", one.since)
            for one in view.stopped
        )
        return Around(view.compiling, stopped)

    def _probe_changed(self, report: ProbeReport) -> None:
        if report.warmed:
            # A later run of the agent need not ask the canaries again: one pulse proves the rank then.
            with contextlib.suppress(OSError):
                self._warmed_mark.touch()
        self._on_change(self)

    def begin(self) -> None:
        loop = asyncio.get_running_loop()
        self.task = loop.create_task(self._supervisor.run())
        if self._prober is not None:
            self._probing = loop.create_task(self._prober.run())

    async def close(self) -> None:
        """Stop looking. What runs goes on."""
        for task in (self.task, self._probing):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    @property
    def handle(self) -> RankHandle:
        return self._supervisor.handle

    def pids(self) -> frozenset[int]:
        return self._supervisor.pids()

    @property
    def is_abandoned(self) -> bool:
        """Nobody looks after it any more, and it is not gone."""
        return self.task is not None and self.task.done() and self.view.state != "gone"

    @property
    def view(self) -> RankView:
        return self._supervisor.view

    @property
    def served(self) -> bool:
        return self._prober is not None and self._prober.report().api_up

    @property
    def wedged(self) -> str | None:
        return self._prober.report().wedged if self._prober is not None else None

    def kill(self, reason: str) -> None:
        self._supervisor.kill(reason, at_once=self.condemned is not None)

    def terminate(self, grace_s: float, reason: str) -> None:
        self._supervisor.terminate(grace_s, reason)

    def gang_serves(self) -> None:
        """The coordinator says so: a follower's own log tells nothing of it."""
        self._gang_serves = True

    @property
    def phase(self) -> RankPhase:
        return "serving" if self._gang_serves else self._progress.phase

    def loaded_s(self) -> float | None:
        """Seconds since its weights were loaded; None before."""
        loading = self._progress.phase in ("launching", "rendezvous", "loading")
        return None if loading else self._clock.now().mono - self._progress.phase_since

    def moving(self, within_s: float) -> bool | None:
        """Whether the engine completed a step within so long; None on a follower, which cannot know."""
        age = self._prober.report().moved_age_s if self._prober is not None else None
        return None if age is None else age <= within_s

    def ask_pulse(self) -> None:
        """A proof is wanted now, because a node of the gang is silent."""
        if self._prober is not None:
            self._prober.ask_pulse()

    async def stacks(self, within_s: float | None = None) -> list[dict[str, object]]:
        """`{"pid", "title", "lines", "silent"}` of each process that can tell, where its threads are now.

        One after the other: nothing in a stack says whose it is. With `within_s` for all of them, each has
        its share of what is left: one that is stopped must not take the time of all.
        """
        found: list[dict[str, object]] = []
        until = None if within_s is None else self._clock.now().mono + within_s
        traceable = self._supervisor.traceable()
        for place, (pid, title) in enumerate(traceable):
            offset = self._log.size
            if not self._supervisor.stack(pid):
                continue
            now = self._clock.now().mono
            share = (until - now) / (len(traceable) - place) if until is not None else self._limits.stacks_s
            deadline = now + min(share, self._limits.stacks_s)
            size = offset
            while self._clock.now().mono < deadline:
                await asyncio.sleep(self._limits.stacks_pause_s)
                if size > offset and self._log.size == size:
                    break  # it has come to rest
                size = self._log.size
            written = self._log.follow(offset, self._limits.report_log_bytes).lines
            lines = [line.text for line in written if _STACK.match(line.text)]
            silent = "" if lines else self._supervisor.whereabouts(pid)
            found.append({"pid": pid, "title": title, "lines": lines, "silent": silent})
        return found

    def look(self) -> None:
        """Take in what the rank did since the last look. Cheap when it did nothing."""
        view = self.view
        if view.state == "gone":
            return
        self._read()
        lines, self._unseen = tuple(self._unseen), []
        sample = ProgressSample(
            lines=lines,
            read_bytes=max(view.read_bytes, view.rchar_bytes),
            rss_bytes=view.rss_bytes,
            cpu_s=view.cpu_seconds,
            compiling=view.compiling,
            phase="serving" if self.served else None,
        )
        self._progress = progress_of.observe(self._progress, sample, self._clock.now().mono)
        self._mods.read(lines)
        before, self._transport = self._transport, transport_of(lines, self._transport)
        if self._transport != before:
            self._on_change(self)
        loaded = self._progress.phase in {"warming", "serving"}
        if loaded and self._mods.judge(self._supervisor.model_processes(), self._clock.now().mono):
            self._on_change(self)

    def _read(self) -> None:
        fresh = self._log.follow(self._log_at, self._limits.report_log_bytes)
        self._log_at = fresh.next_offset
        if fresh.data:
            self._untold = [*self._untold, fresh][-_UNTOLD_LOOKS:]
            lines = [line.text for line in fresh.lines]
            self._unseen += lines
            if self._collective is not None:
                self._collective = read_collective(lines, self._collective)
                self._transport = transport_of(lines, self._transport)

    def tail(self) -> LogChunk | None:
        """What it wrote that no coordinator has acknowledged yet; of a flood the newest part."""
        if self.view.fell is not None:
            self._read()  # its last words: it is gone before the next look
        if not self._untold:
            return None
        kept: list[LogSlice] = []
        bytes_ = 0
        for piece in reversed(self._untold):
            bytes_ += len(piece.data)
            if kept and bytes_ > self._limits.report_log_bytes:
                break
            kept.append(piece)
        text = b"".join(piece.data for piece in reversed(kept)).decode(errors="replace")
        self._told_at = self._untold[-1].next_offset
        return LogChunk(self.view.name, kept[-1].offset, text)

    def tail_told(self) -> None:
        """The coordinator has what `tail` gave last."""
        self._untold = [piece for piece in self._untold if piece.offset >= self._told_at]

    def report(self) -> RankReport:
        view, progress = self.view, self._progress
        if self._collective is not None:
            self._read()  # it may be over before the next look, and what it found is in its last lines
        still = sorted(view.stopped, key=lambda one: one.since)
        ages = tuple(self._clock.now().mono - one.since for one in still)
        return RankReport(
            name=view.name,
            state=view.state,
            pid=view.pid,
            since=view.since.wall,
            phase=progress.phase,
            detail=progress.detail or progress.what,
            percent=progress.percent,
            progress_age_s=progress.age(self._clock.now().mono),
            rss_bytes=view.rss_bytes,
            read_bytes=max(view.read_bytes, view.rchar_bytes),
            processes=view.processes,
            exit=view.exit,
            fell=view.fell,
            lines=view.lines,
            probe=self._prober.report() if self._prober is not None else None,
            ended=view.reason or None,
            remains=view.remains,
            stopped=tuple(self._in_words(one) for one in still),
            condemned=self.condemned,
            mods_missing=self._mods.missing,
            transport=self._transport,
            collective=self._collective,
            stopped_s=ages[0] if ages else None,
            stopped_each_s=ages,
        )

    def _in_words(self, one: StoppedProcess) -> str:
        age = self._clock.now().mono - one.since
        return f"{one.title} (pid {one.pid}) is stopped (state T) since {age:.0f} s"
