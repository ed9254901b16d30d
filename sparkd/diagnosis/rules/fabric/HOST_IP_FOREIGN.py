from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="HOST_IP_FOREIGN",
    title="an address at which a node is to meet the others is none of its own",
    cause="addresses changed since it was written into agent.toml or the profile",
    remedy="take fabric_address and VLLM_HOST_IP out there: sparkd finds the address of each node",
    match=reported("HOST_IP_FOREIGN"),
    kind="state",
)
