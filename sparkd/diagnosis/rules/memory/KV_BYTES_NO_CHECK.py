from collections.abc import Iterator
from typing import Final

from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.rule import Found, Rule, log, on_line, reported

_REPORTED: Final = reported("KV_BYTES_NO_CHECK")
_SKIPPED: Final = log("skipped memory profiling", "does not respect the gpu_memory_utilization")
_FULL: Final = ("NV_ERR_NO_MEMORY", "Out of memory: Killed", "invoked oom-killer")


def _match(evidence: Evidence) -> Iterator[Found]:
    """In a log it says nothing by itself: many serve so for months."""
    yield from _REPORTED(evidence)
    full = [line for line in evidence.kernel if any(words in line.text for words in _FULL)]
    nodes = {line.node for line in full}
    for line in evidence.lines if full else ():
        if _SKIPPED.matches(line.text) and (line.node in nodes or None in (line.node, *nodes)):
            yield on_line(line)


RULE = Rule(
    id="KV_BYTES_NO_CHECK",
    title="the KV cache was given in bytes, which vLLM does not check against the memory there is",
    cause="with kv-cache-memory-bytes it skips its measuring of memory, and the first long prompts take what is left",
    remedy="give fewer bytes, or leave kv-cache-memory-bytes out and say gpu-memory-utilization",
    match=_match,
    kind="state",
    needles=_SKIPPED.needles,
    reference="AEON-7/vllm-ultimate-dgx-spark#9; MiaAI-Lab/DeepSeek-v4-Flash-One-DGX-Spark#10",
)
