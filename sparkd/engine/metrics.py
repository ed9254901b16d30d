"""The few of vLLM's metrics that say whether the engine works (facts/vllm.md §3.2)."""

from dataclasses import dataclass
from typing import Final

_PREFIX: Final = "vllm:"


@dataclass(frozen=True, slots=True)
class Counters:
    """One look at `/metrics`, summed over engines. None: this engine does not say.

    Any difference between two looks means that the engine completed a step in between: all of these reach
    the API server with a step's outputs. `kv_usage` and the queue lengths are here because of long
    prefills: vLLM 0.32 counts a prompt's tokens only with its first answer, while the KV cache fills with
    each chunk (v1/metrics/loggers.py).
    """

    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    iterations: float | None = None
    iteration_tokens: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None

    def moved_since(self, earlier: "Counters") -> bool:
        """Whether the engine completed a step between two looks."""
        return self != earlier

    def tokens_since(self, earlier: "Counters") -> bool:
        """Whether tokens were generated; also after a counter began anew (another process answers)."""
        if self.generation_tokens is None or self.generation_tokens == earlier.generation_tokens:
            return False
        before = earlier.generation_tokens
        if before is None or self.generation_tokens < before:
            return self.generation_tokens > 0
        return True


_FIELDS: Final[dict[str, str]] = {
    "prompt_tokens_total": "prompt_tokens",
    "generation_tokens_total": "generation_tokens",
    "iteration_tokens_total_count": "iterations",
    "iteration_tokens_total_sum": "iteration_tokens",
    "num_requests_running": "running",
    "num_requests_waiting": "waiting",
    "kv_cache_usage_perc": "kv_usage",
}


def read_metrics(text: str) -> Counters:
    """Read Prometheus text; lines that cannot be read are skipped, whatever they are."""
    sums: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith(_PREFIX):
            continue
        name = line[len(_PREFIX) :].partition("{")[0].partition(" ")[0]
        field = _FIELDS.get(name)
        if field is None:
            continue
        # Label values may hold spaces; after the last brace come the value and perhaps a time stamp.
        words = line.rpartition("}")[2].split() if "}" in line else line.split()[1:]
        try:
            sums[field] = sums.get(field, 0.0) + float(words[0])
        except (ValueError, IndexError):
            continue
    return Counters(**sums)
