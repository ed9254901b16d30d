from sparkd.diagnosis.rule import Rule, log

RULE = Rule(
    id="DOCKER_DENIED",
    title="the container engine may not be used",
    cause="the user is not in the group that owns Docker's socket, or the engine does not run",
    remedy="add the user to the group docker and log in again, or let root's agent start the ranks",
    match=log(
        "Docker daemon socket",
        "connect to the Docker daemon",
        "docker API at",
        pattern=r"permission denied while trying to connect to the [Dd]ocker|Cannot connect to the Docker daemon",
    ),
    retry="never",
    reference="NVIDIA/nvidia-container-toolkit#871",
)
