"""The answers to the tasks of a document: of a rank, of the watch, or of the node (`tasks.py`)."""

import asyncio
from functools import partial
from pathlib import Path

from sparkd.records.document import Task
from sparkd.records.report import TaskResult
from sparkd_agent.config import AgentConfig
from sparkd_agent.diary import Diary
from sparkd_agent.ears import Ears
from sparkd_agent.machine import Machine
from sparkd_agent.ranks import Ranks
from sparkd_agent.tasks import answer
from sparkd_agent.watch.watch import Watch


class Answers:
    def __init__(
        self,
        config: AgentConfig,
        ranks_dir: Path,
        *,
        ranks: Ranks,
        watch: Watch,
        diary: Diary,
        machine: Machine,
        ears: Ears,
    ) -> None:
        self._config = config
        self._ranks_dir = ranks_dir
        self._ranks = ranks
        self._watch = watch
        self._diary = diary
        self._machine = machine
        self._ears = ears

    async def to(self, task: Task) -> TaskResult | None:
        """None for a task that is answered in the next reports. What goes wrong is an answer: `ok` false."""
        try:
            return await self._to(task)
        except (OSError, LookupError, ValueError, TypeError) as error:  # whoever asked waits for a word
            return TaskResult(task.id, ok=False, error=str(error))

    async def of_node(self, task: Task) -> TaskResult:
        """In a thread: files and sockets may take their time. What only the loop may ask is asked before."""
        own = frozenset(pid for rank in self._ranks for pid in rank.pids())
        look_over = partial(self._machine.look_over, own, self._watch.gpus())
        return await asyncio.to_thread(answer, task, self._config, self._ranks_dir, look_over, self._ears)

    async def _to(self, task: Task) -> TaskResult | None:
        rank = self._ranks.get(str(task.args.get("rank")))
        match task.kind:
            case "canary":
                if rank is not None:
                    rank.ask_pulse()
                return None  # its answer is the proof's age in the next reports
            case "stacks":
                if rank is None:
                    return TaskResult(task.id, ok=False, error="it does not run on this node")
                within_s = task.args.get("within_s")
                told = await rank.stacks(float(within_s) if within_s is not None else None)
                return TaskResult(task.id, ok=True, result={"processes": told})
            case "evict":
                refused = await self._watch.drop_cache("memory of the last generation has not come back")
                return TaskResult(task.id, ok=refused is None, error=refused)
            case "blackbox":
                return await self._diary.tell(task.id)
            case _:
                return await self.of_node(task)
