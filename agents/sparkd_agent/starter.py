"""Starts one rank: all that has to be there first, the intent in the ledger, then the runtime."""

import os
import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sparkd.errors import RankNotStarted, Spent
from sparkd.records.rank import MemoryNeed, RankSpec
from sparkd.records.report import Refusal, RefusalCode
from sparkd_agent.config import AgentConfig, EngineConfig
from sparkd_agent.ledger import Ledger
from sparkd_agent.placed import files_root, place_files
from sparkd_agent.privileges import Offer
from sparkd_agent.runtime.base import Launch, RankHandle, Runtime, make_inner_launch, make_launch
from sparkd_agent.specs import checkpoint_of


@dataclass(frozen=True, slots=True)
class Starter:
    config: AgentConfig
    offer: Offer
    runtimes: Mapping[str, Runtime]
    ledger: Ledger

    async def start(
        self,
        spec: RankSpec,
        baseline_bytes: int | None,
        make_room: Callable[[MemoryNeed, Path | None], Awaitable[None]],
    ) -> tuple[Runtime, RankHandle] | Refusal:
        """`baseline_bytes`: MemAvailable when last no rank existed here. `make_room` is awaited before."""
        engine = self.config.engines.get(spec.engine)
        if spec.runtime != "docker" and (engine is None or not os.access(engine.python, os.X_OK)):
            where = engine.python if engine else f"[engine.{spec.engine}]"
            return _refused(spec, "engine", f"this node has no engine at {where}")
        try:
            self.ledger.intend(spec, baseline_bytes)
        except sqlite3.Error as error:
            return _refused(spec, "ledger", f"the intent cannot be written: {error}")
        try:
            place_files(files_root(self.config.state, self.offer.account), spec.descriptor.intent.files)
        except (OSError, ValueError) as error:
            return _refused(spec, "not-started", f"the profile's files cannot be put in place: {error}")
        runtime = self.runtimes.get(spec.runtime)
        if runtime is None:
            offered = ", ".join(self.offer.runtimes) or "none"
            return _refused(
                spec, "not-started", f"this node has no runtime {spec.runtime} (it has: {offered})"
            )
        await make_room(spec.memory, checkpoint_of(spec))
        try:
            return runtime, await runtime.start(spec, self._launch_of(spec, engine))
        except Spent as error:
            return _refused(spec, "spent", str(error))
        except RankNotStarted as error:
            return _refused(spec, "not-started", str(error), error.cause)

    def _launch_of(self, spec: RankSpec, engine: EngineConfig | None) -> Launch:
        account = self.offer.account
        if engine is None or spec.runtime == "docker":
            return make_inner_launch(spec, rank_env=self.config.rank_env, account=account)
        return make_launch(
            spec,
            engine.command_of(spec.kind),
            agent_env=os.environ,
            rank_env=self.config.rank_env,
            cwd=str(self.config.state) if account is None else account.working_folder,
            account=account,
        )


def _refused(spec: RankSpec, code: RefusalCode, reason: str, cause: str = "") -> Refusal:
    return Refusal(spec.name, code, reason, cause)
