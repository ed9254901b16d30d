"""What is told of a mod: one line of JSON on standard error, which the agent reads out of the rank's log.

Written to the descriptor: vLLM's workers decorate `sys.stderr`. One write of less than 4,096 bytes stays
whole beside the lines of other processes.
"""

import json
import multiprocessing
import os
import sys
from typing import Literal

PREFIX = "sparkd-mod "
State = Literal["pending", "applied", "not needed", "refused"]
_REASON_CHARACTERS = 600


def tell(mod: str, state: State, reason: str = "", target: str = "") -> None:
    entry = {
        "pid": os.getpid(),
        "role": role(),
        "mod": mod,
        "state": state,
        "target": target,
        "reason": reason[:_REASON_CHARACTERS],
    }
    os.write(2, f"{PREFIX}{json.dumps({k: v for k, v in entry.items() if v})}\n".encode())


def role() -> str:
    """What this process is to vLLM: worker, engine, registry (its short-lived inspection), or launcher."""
    name = multiprocessing.current_process().name
    if "Worker" in name:
        return "worker"
    if name.startswith("EngineCore"):
        return "engine"
    if any("models.registry" in word for word in sys.orig_argv) or sys.argv[0].endswith("registry.py"):
        return "registry"
    return "launcher"
