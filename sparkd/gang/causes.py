"""Which falls a retry cannot cure, which are for lack of memory, and which have a name that helps.

The table stands here until the diagnosis catalogue exists; then its rows move there.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sparkd.gang.budget import RetryClass


@dataclass(frozen=True, slots=True)
class Cause:
    id: str
    retry: RetryClass
    title: str
    remedy: str
    pattern: re.Pattern[str] | None
    """Of a line of the rank's; None for what an agent's watch finds."""


def _cause(id_: str, retry: RetryClass, title: str, remedy: str, pattern: str) -> Cause:
    return Cause(id_, retry, title, remedy, re.compile(pattern))


_LESS = "lower gpu-memory-utilization, max-num-seqs or max-model-len; `sparkd plan` shows the memory sum"


CAUSES: Final = (
    _cause(
        "ARGUMENT_INVALID",
        "never",
        "vLLM refused an argument",
        "correct the argument named in the line above; `sparkd plan` shows where it came from",
        r"error: (unrecognized arguments|argument [^ ]+:|ambiguous option)|"
        r"(?:pydantic_core\._pydantic_core\.)?ValidationError: \d+ validation error",
    ),
    _cause(
        "ENGINE_MISSING",
        "never",
        "the engine's program could not be started",
        "correct [engine.default] in the agent's configuration on that node",
        r"cannot execute |No module named '?vllm",
    ),
    _cause(
        "MODEL_MISSING",
        "never",
        "a file of the model is missing",
        "put the whole checkpoint into a model root of every node",
        r"FileNotFoundError|No such file or directory: '.*(config\.json|\.safetensors)|"
        r"Repo id must be in the form|Can't load the configuration of|does not appear to have a file named",
    ),
    _cause(
        "MODEL_UNSUPPORTED",
        "never",
        "this vLLM does not know the model",
        "use the vLLM version that the profile states",
        r"Model architectures \[.*\] are not supported|does not recognize this architecture",
    ),
    _cause(
        "MOD_MISSING",
        "never",
        "a required mod is not applied",
        "`sparkd mods check --python PATH` on that node says more; `unknown: try` in the profile dares it",
        r"ModRefusedError: ",
    ),
    _cause(
        "MEM_FREE_GATE",
        "memory",
        "not enough free memory for the engine",
        "free memory on that node, or lower `gpu-memory-utilization` with --set",
        r"Free memory on device|No available memory for the cache blocks|CUDA out of memory|"
        r"torch\.OutOfMemoryError|NV_ERR_NO_MEMORY",
    ),
    _cause(
        "PORT_STOLEN",
        "normal",
        "another program took a port after it had been found free",
        "nothing: the next generation meets at another port; if it names the API port, stop that program",
        r"EADDRINUSE|[Aa]ddress already in use",
    ),
    Cause("MEMORY_CRITICAL", "memory", "the node had hardly any memory left", _LESS, None),
    Cause("MEMORY_PLUNGE", "memory", "memory fell faster than anything could be done about it", _LESS, None),
    Cause("MEMORY_THRASH", "memory", "the node's memory thrashed", _LESS, None),
    Cause("UVM_THRASH", "memory", "no free memory, and a UVM thread was busy with it", _LESS, None),
    Cause("HOST_WEDGE_NVRM", "memory", "the GPU's driver got no memory any more", _LESS, None),
)
OF_THE_WATCH: Final = frozenset(cause.id for cause in CAUSES if cause.pattern is None)


def classify(lines: Iterable[str]) -> Cause | None:
    """The first row of the table that any of a fallen rank's telling lines matches."""
    text = tuple(lines)
    for cause in CAUSES:
        if cause.pattern is not None and any(cause.pattern.search(line) for line in text):
            return cause
    return None


def known_cause(id_: str | None) -> Cause | None:
    """The row of that id; None for a fall without a cause, or with one that is not read from lines."""
    return next((cause for cause in CAUSES if cause.id == id_), None)
