from sparkd.diagnosis.rule import Rule, log

RULE = Rule(
    id="DOCKER_NO_GPU",
    title="the container engine gives no GPU",
    cause="NVIDIA's container toolkit is missing or not configured; Docker from snap and without root cannot have it",
    remedy="install nvidia-container-toolkit, then `nvidia-ctk runtime configure --runtime=docker` and restart Docker",
    match=log(
        "could not select device driver",
        "unknown or invalid runtime name: nvidia",
        "nvidia-container-cli: ",
        pattern=r"could not select device driver .*gpu|invalid runtime name: nvidia|nvidia-container-cli: .*(error|failed)",
    ),
    retry="never",
    reference="NVIDIA/nvidia-container-toolkit#871; NVIDIA/nvidia-docker#1642",
)
