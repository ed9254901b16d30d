from sparkd.diagnosis.rule import Rule, log

RULE = Rule(
    id="IFNAME_STALE_CONCRETE",
    title="a variable names a network interface that is not there, or has no address",
    cause="the name came from a template or from another node, where the cable is in the other port",
    remedy="leave GLOO_, NCCL_ and TP_SOCKET_IFNAME out: sparkd sets them for each node at every launch",
    match=log(
        "Unable to find address for:",
        "no socket interface found",
        "No interface found",
        pattern=r"Unable to find address for: *\S+|no socket interface found|NCCL WARN .*No interface found",
    ),
    reference="MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark#4",
)
