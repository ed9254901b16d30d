"""Ranks in containers, where a test stands on a Docker engine: which engine, which image, which runtime."""

import os
from pathlib import Path
from typing import Final

from sparkd.records.defaults import Defaults
from sparkd.records.rank import PinnedImage
from sparkd_agent.procfs import ProcFs
from sparkd_agent.runtime.docker import DockerRuntime
from sparkd_agent.runtime.docker_api import DockerApi
from sparkd_agent.runtime.images import Images

BED: Final = Path(__file__).parent
HOSTILE: Final = BED / "hostile.py"
SOCKET_VARIABLE: Final = "SPARKD_TESTS_DOCKER"
"""The socket of the engine, for tests that another test runs (`tests/docker/test_falls.py`)."""
IMAGE: Final = "sparkd-tests/stand-in:1"
PATIENCE_S: Final = 20.0


def socket_of_tests() -> str:
    return os.environ[SOCKET_VARIABLE]


def images(folder: Path, socket: str) -> Images:
    return Images(DockerApi(socket, PATIENCE_S), folder / "images")


def pinned(folder: Path, socket: str, image: str = IMAGE) -> PinnedImage:
    return PinnedImage(image, images(folder, socket).find(image).identity)


def container_runtime(
    folder: Path,
    socket: str,
    *,
    procfs: ProcFs,
    limits: Defaults,
    roots: tuple[str, ...] = (),
    command: tuple[str, ...] = (),
) -> DockerRuntime:
    """Of an agent whose state is in the folder; `python3 hostile.py …` where vLLM would be."""
    return DockerRuntime(
        folder / "ranks",
        DockerApi(socket, PATIENCE_S),
        images(folder, socket),
        caches=folder / "caches",
        roots=(str(BED), *roots),
        procfs=procfs,
        limits=limits,
        command=command or ("python3", "-I", "-S", str(HOSTILE)),
    )
