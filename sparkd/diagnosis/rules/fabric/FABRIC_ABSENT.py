from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="FABRIC_ABSENT",
    title="no RDMA leads to all nodes",
    cause="no cable, no address, or a card switched off: no RDMA devices does not mean that there is no card",
    remedy="see to cables and addresses; `--force FABRIC_ABSENT` starts over sockets, many times slower",
    match=reported("FABRIC_ABSENT"),
    kind="state",
    reference="graham33/nixos-dgx-spark#165",
)
