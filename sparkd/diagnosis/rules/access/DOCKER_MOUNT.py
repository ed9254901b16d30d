from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="DOCKER_MOUNT",
    title="a folder that the container needs is not there for Docker",
    cause="a model root that was moved, or a Docker in a virtual machine or a snap, which sees other folders",
    remedy="compare the model roots in the node's agent.toml with its disks",
    match=reported("DOCKER_MOUNT"),
    retry="never",
)
