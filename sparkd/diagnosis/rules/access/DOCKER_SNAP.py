from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="DOCKER_SNAP",
    title="Docker is a snap on this node",
    cause="a snap sees no folder outside of home folders, and no GPU",
    remedy="sudo snap remove docker, then install Docker's own package (docker.io or docker-ce)",
    match=reported("DOCKER_SNAP"),
    retry="never",
    reference="NVIDIA/nvidia-docker#1642",
)
