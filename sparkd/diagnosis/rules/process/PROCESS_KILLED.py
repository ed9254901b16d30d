from collections.abc import Iterator

from sparkd.diagnosis.ended import NEEDLES, asked_to_end, ends_of, found_end
from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.lines import ASKED_TO_END
from sparkd.diagnosis.rule import Found, Rule
from sparkd.diagnosis.rules.node.KERNEL_OOM import RULE as KERNEL_OOM

_SIGKILL = 9


def _match(evidence: Evidence) -> Iterator[Found]:
    """Unless the kernel says that it was the one, or the rank that it was asked to end: then that is the cause,
    and this its consequence. An engine that is asked to end kills its own processes.
    """
    asked = {line.rank for line in asked_to_end(evidence)}
    struck = [found.evidence for found in KERNEL_OOM.match(evidence)]
    for end in ends_of(evidence):
        by_kernel = any(
            f"process {end.pid} " in told if end.pid is not None else "(VLLM::" in told for told in struck
        )
        if end.signal == _SIGKILL and not by_kernel and end.rank not in asked:
            yield found_end(end)


RULE = Rule(
    id="PROCESS_KILLED",
    title="a process of the rank was killed",
    cause="SIGKILL came from outside; by whom is unknown: nothing that is left says so",
    remedy="see who else ends processes there: `dmesg` for the kernel's OOM killer, systemd-oomd, a person",
    match=_match,
    kind="exit",
    needles=(*NEEDLES, ASKED_TO_END),
)
