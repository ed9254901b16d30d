"""What stands in the way of a container, in plain words, and what to do about it. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sparkd.errors import DockerRefused, DockerUnreachable, ImageUnusable

Failure = DockerUnreachable | DockerRefused


@dataclass(frozen=True, slots=True)
class Trouble:
    """`id` is a verdict's."""

    id: str
    title: str
    remedy: str


NO_GPU: Final = Trouble(
    "DOCKER_NO_GPU",
    "Docker cannot give a container this node's GPU: it has neither NVIDIA's runtime nor a CDI description",
    "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker",
)
IMAGE: Final = Trouble("IMAGE_MISSING", "the image cannot be run on this node", "")
"""What is wrong and what to do depends on the image: the error says it."""
SNAP: Final = Trouble(
    "DOCKER_SNAP",
    "Docker is a snap here: it sees no folder outside of home folders, and no GPU",
    "sudo snap remove docker, then install Docker's own package (docker.io or docker-ce)",
)
DENIED: Final = Trouble(
    "DOCKER_DENIED",
    "the agent may not use Docker's socket",
    "run the agent as root, by sparkd-agent.service, or put its user into the group docker",
)
DOWN: Final = Trouble(
    "DOCKER_DOWN",
    "Docker does not answer on this node",
    "sudo systemctl restart docker; if it fails: journalctl -u docker",
)
NAME_TAKEN: Final = Trouble(
    "DOCKER_NAME_TAKEN",
    "a container of this rank's name exists, and is not this agent's",
    "see whose it is with `docker inspect`, and remove it; or deploy under another --name",
)
NO_SPACE: Final = Trouble(
    "DOCKER_NO_SPACE",
    "Docker's disk is full",
    "docker system df shows what takes it; docker system prune frees some",
)
MOUNT: Final = Trouble(
    "DOCKER_MOUNT",
    "a folder that the container needs is not there for Docker",
    "compare the model roots in agent.toml with the node; a Docker in a snap or a VM sees other folders",
)
NO_PYTHON: Final = Trouble(
    "IMAGE_NO_VLLM", "the image has no python3 on its PATH", "use an image with vLLM installed"
)
REFUSED: Final = Trouble("DOCKER_REFUSED", "Docker refuses the container", "journalctl -u docker says more")

_SNAP_FOLDER: Final = "/snap/docker/current"
_SAID: Final = (
    ("no space left", NO_SPACE),
    ("could not select device driver", NO_GPU),
    ("unknown or invalid runtime name: nvidia", NO_GPU),
    ("unknown runtime specified nvidia", NO_GPU),
    ("nvidia-container-cli", NO_GPU),
    ("unresolvable cdi devices", NO_GPU),
    ("bind source path does not exist", MOUNT),
    ("python3: executable file not found", NO_PYTHON),
    ('"python3": executable file not found', NO_PYTHON),
    ("is already in use by container", NAME_TAKEN),
)
"""By what the engine says, in lower case: its statuses tell little apart."""


def trouble_of(error: Failure, exists: Callable[[str], bool] = lambda path: Path(path).exists()) -> Trouble:
    """`exists` is asked for Docker's snap, which explains several of them."""
    said = str(error).lower()
    if isinstance(error, ImageUnusable):
        return IMAGE
    if isinstance(error, DockerUnreachable):
        found = DENIED if "permission denied" in said else DOWN
    else:
        found = next((trouble for words, trouble in _SAID if words in said), REFUSED)
    return SNAP if found in (DOWN, MOUNT, NO_GPU) and exists(_SNAP_FOLDER) else found


def in_words(error: Failure) -> str:
    """One line with evidence and remedy."""
    trouble = trouble_of(error)
    if not trouble.remedy:
        return str(error)
    return f"{trouble.title} ({error}). {trouble.remedy}"


def describes_nvidia(folder: str) -> bool:
    return any("nvidia" in path.name for path in Path(folder).glob("*") if path.suffix in (".yaml", ".json"))


def gpu_requests(
    info: Mapping[str, Any], described: Callable[[str], bool] = describes_nvidia
) -> tuple[dict[str, Any], ...]:
    """How to ask this engine (`GET /info`) for all GPUs of its node: NVIDIA's runtime, else CDI.

    `described` says whether a CDI folder describes NVIDIA's devices. Raises DockerRefused if neither
    will do.
    """
    if "nvidia" in (info.get("Runtimes") or {}):
        return ({"Driver": "nvidia", "Count": -1, "Capabilities": [["gpu", "compute", "utility"]]},)
    if any(described(folder) for folder in info.get("CDISpecDirs") or ()):
        return ({"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]},)
    raise DockerRefused(
        "could not select device driver: the engine lists no runtime `nvidia` and no CDI device"
    )
