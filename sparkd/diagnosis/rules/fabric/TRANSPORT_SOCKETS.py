from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="TRANSPORT_SOCKETS",
    title="NCCL went over sockets although it was given RDMA ports",
    cause="the rank cannot open the device (/dev/infiniband, memlock), or a port went down since the plan was made",
    remedy="look for `NET/IB` and `ibv_` in the rank's log; `--force TRANSPORT_SOCKETS` bears it, many times slower",
    match=reported("TRANSPORT_SOCKETS"),
    kind="end",
)
