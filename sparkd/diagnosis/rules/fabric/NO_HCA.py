from sparkd.diagnosis.rule import Rule, log
from sparkd.records.verdict import Severity

RULE = Rule(
    id="NO_HCA",
    title="NCCL uses sockets instead of RDMA",
    cause="the network card is gone from the PCIe bus (it comes back by hot-plug or not at all), or NCCL is told to pass it over",
    remedy="`ls /sys/class/infiniband` on that node; if it is empty, shut the node down and take it off power for a minute",
    match=log("NET/IB : No device found", "via NET/Socket", "Using network Socket"),
    kind="state",
    severity=Severity.WARN,
    reference="graham33/nixos-dgx-spark#165",
)
