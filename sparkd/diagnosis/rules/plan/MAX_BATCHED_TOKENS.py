from collections.abc import Iterator
from typing import Final

from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.rule import Found, Rule
from sparkd.engine.flags import whole_number
from sparkd.records.verdict import Severity

_MOST: Final = 32_768
"""More than that at once was reported to hang a Spark as it starts; public recipes use 2,048 to 16,384."""
_FLAG: Final = "max-num-batched-tokens"


def _match(evidence: Evidence) -> Iterator[Found]:
    if evidence.asked is None:
        return
    batched = whole_number(evidence.asked.args.get(_FLAG))
    if batched is None or batched <= _MOST:
        return
    length = whole_number(evidence.asked.args.get("max-model-len"))
    same = ", as much as max-model-len" if length == batched else ""
    small = [
        member.name
        for member in evidence.members
        if member.machine is not None and any("GB10" in name for name in member.machine.gpus or ())
    ]
    if small:
        yield Found(f"{_FLAG} {batched:,}{same}, on the GB10 of {', '.join(small)}")
    elif same:
        yield Found(f"{_FLAG} {batched:,}{same}")


RULE = Rule(
    id="MAX_BATCHED_TOKENS",
    title="so many tokens at once may take all memory of a Spark as it starts",
    cause="vLLM runs one pass of this size before it serves, and its activations come on top of weights and KV; "
    "generated profiles write max-model-len here",
    remedy="write 8192 or so: longer prompts are taken in several passes",
    match=_match,
    kind="state",
    severity=Severity.WARN,
    prevents=("engine.args.max-num-batched-tokens=8192",),
    reference="AEON-7/vllm-dflash#1",
)
