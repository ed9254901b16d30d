from collections.abc import Iterator

from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.rule import Found, Rule, log
from sparkd.records.defaults import DEFAULTS, GIB
from sparkd.records.verdict import Severity

_LOADED = log("Loading weights took ", "Model loading took ")
_SPIKE_BYTES = 8 * GIB
"""Reported are 17 to 19 GiB; a load without a repack takes less than 2."""


def _match(evidence: Evidence) -> Iterator[Found]:
    for line in evidence.lines:
        if line.at is None or not _LOADED.matches(line.text):
            continue
        seen: dict[str, list[int]] = {}
        for look in evidence.samples:
            memory = look.sample.memory
            if line.node in (None, look.node) and memory and 0 <= look.at - line.at <= DEFAULTS.load_spike_s:
                seen.setdefault(look.node, []).append(memory.available)
        for node, available in seen.items():
            fell = available[0] - min(available)
            if fell >= _SPIKE_BYTES:
                measured = f"MemAvailable {available[0] / GIB:.1f} GiB, then {min(available) / GIB:.1f} GiB"
                title = f"memory fell by {fell / GIB:.0f} GiB after the weights were loaded"
                yield Found(f"{measured}: {line.text}", line.rank, node, line.at, title=title)


RULE = Rule(
    id="LOAD_SPIKE",
    title="memory fell far after the weights were loaded",
    cause="weights are packed anew, kernels tuned and work space taken, beside what vLLM counts; lower utilization does not help",
    remedy="write it into the profile as `memory.load_spike_gib`, so that the plan and the load guard know it",
    match=_match,
    kind="state",
    severity=Severity.WARN,
    needles=_LOADED.needles,
    reference="huggingface.co nvidia/GLM-5.3-Flash-FP4-Local #7",
)
