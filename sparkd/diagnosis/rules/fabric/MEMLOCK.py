from collections.abc import Iterator

from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.rule import Found, Rule, log
from sparkd.diagnosis.rules.node.KHO_CMA import RULE as KHO_CMA
from sparkd.records.defaults import GIB

_LINE = log("ibv_reg_mr", pattern=r"ibv_reg_mr\w* failed.*(Cannot allocate memory|ENOMEM|\b12\b)")


def _match(evidence: Evidence) -> Iterator[Found]:
    """The same words come of a bug of the kernel, which is seen on the node itself (case 31)."""
    buggy = {found.node for found in KHO_CMA.match(evidence)}
    yield from (found for found in _LINE(evidence) if not buggy & {found.node, None})
    if evidence.asked is not None and evidence.asked.ranks == 1:
        return  # it registers no memory with a card
    for member in evidence.members:
        machine = member.machine
        # Units of systemd have no such limit; a plain process has its agent's.
        if machine is None or member.local or member.runtime != "process":
            continue
        adapters = [part for part in machine.firmware if part != "system"]
        if machine.memlock_bytes is not None and machine.memlock_bytes < GIB and adapters:
            limit = f"max locked memory {machine.memlock_bytes // 1024} KiB"
            yield Found(
                f"{limit}, with RDMA devices {', '.join(adapters)}",
                node=member.name,
                cause="a limit of the agent's own, which its ranks inherit",
                remedy="run the agent by sparkd-agent.service, or raise `ulimit -l` for it",
            )


RULE = Rule(
    id="MEMLOCK",
    title="RDMA may not lock memory",
    cause="the limit of locked memory of the service or the container is too low (`ulimit -l`)",
    remedy="start ranks with LimitMEMLOCK=infinity (`--ulimit memlock=-1` for docker), as sparkd does",
    match=_match,
    retry="memory",
    needles=_LINE.needles,
    reference="NVIDIA/nccl-tests#206; eugr/spark-vllm-docker#389",
)
