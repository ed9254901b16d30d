"""What Docker is told of a rank, what it says when it will not, and which image is which. All without one."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkd.diagnosis.catalogue import catalogue
from sparkd.errors import DockerRefused, DockerUnreachable, ImageUnusable, UsageError
from sparkd_agent.config import DockerConfig, read_config
from sparkd_agent.runtime import docker_trouble
from sparkd_agent.runtime.container import Mount, RankContainer, outermost, with_entrypoint
from sparkd_agent.runtime.docker_trouble import Trouble, gpu_requests, in_words, trouble_of
from sparkd_agent.runtime.images import identity_of

CONTAINER = RankContainer(
    name="sparkd-t-g3-r1",
    image="sha256:abc",
    command=("python3", "shim.py"),
    folder="/state/ranks/sparkd-t-g3-r1",
    user="0:0",
    becomes=1000,
    mounts=(Mount("/models"), Mount("/cache", writable=True)),
    shm_bytes=1 << 30,
    log_bytes=8 << 20,
)
WORDS = ("python3", "-m", "vllm.entrypoints.cli.main")


def host(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = replace(CONTAINER, **changes).body()["HostConfig"]
    return found


def test_a_rank_gets_no_more_than_it_needs() -> None:
    assert host()["CapAdd"] == ["KILL", "SETGID", "SETUID"]
    assert host(user="1000:1000")["CapAdd"] == []
    assert host(becomes=0)["CapAdd"] == ["DAC_OVERRIDE"]
    assert [mount["ReadOnly"] for mount in host()["Mounts"]] == [True, False]
    assert host()["Ulimits"] == [{"Name": "memlock", "Soft": -1, "Hard": -1}]
    assert host(memlock=False)["Ulimits"] == []
    assert host()["Devices"] == []
    assert host(infiniband=True)["Devices"][0]["PathOnHost"] == "/dev/infiniband"


def test_only_a_rank_gets_a_container() -> None:
    with pytest.raises(UsageError):
        replace(CONTAINER, name="other").body()


def test_a_folder_in_another_one_is_mounted_with_it() -> None:
    assert outermost(["/a/b", "/a", "/ab", "/c/d/e", "/c/d"]) == ("/a", "/ab", "/c/d")


@pytest.mark.parametrize(
    ("entrypoint", "kept"),
    [
        ((), False),
        (("vllm", "serve"), False),
        (("python3", "-m", "vllm.entrypoints.openai.api_server"), False),
        (("/bin/bash",), False),
        (("/opt/nvidia/nvidia_entrypoint.sh",), True),
        (("/usr/local/bin/docker-entrypoint",), True),
    ],
)
def test_an_entry_point_that_goes_on_is_kept(entrypoint: tuple[str, ...], kept: bool) -> None:
    assert with_entrypoint(entrypoint, WORDS) == ((*entrypoint, *WORDS) if kept else WORDS)


@pytest.mark.parametrize(
    ("error", "id_"),
    [
        (DockerUnreachable("/run/docker.sock: Permission denied"), "DOCKER_DENIED"),
        (DockerUnreachable("/run/docker.sock: No such file or directory"), "DOCKER_DOWN"),
        (DockerUnreachable("/run/docker.sock: GET /info: no answer in time"), "DOCKER_DOWN"),
        (
            DockerRefused('Conflict. The name "/x" is already in use by container "y"', 409),
            "DOCKER_NAME_TAKEN",
        ),
        (
            DockerRefused('could not select device driver "nvidia" with capabilities: [[gpu]]'),
            "DOCKER_NO_GPU",
        ),
        (DockerRefused("nvidia-container-cli: initialization error: nvml error"), "DOCKER_NO_GPU"),
        (DockerRefused("write /x: no space left on device"), "DOCKER_NO_SPACE"),
        (
            DockerRefused("invalid mount config for type bind: bind source path does not exist: /m"),
            "DOCKER_MOUNT",
        ),
        (DockerRefused('exec: "python3": executable file not found in $PATH'), "IMAGE_NO_VLLM"),
        (DockerRefused("something new"), "DOCKER_REFUSED"),
        (ImageUnusable("image a:1 is not on this node: `docker pull` it"), "IMAGE_MISSING"),
    ],
)
def test_what_an_engine_says_is_told_with_a_remedy(
    error: DockerUnreachable | DockerRefused, id_: str
) -> None:
    assert trouble_of(error, lambda _: False).id == id_
    assert str(error) in in_words(error)


@pytest.mark.parametrize("said", ["bind source path does not exist: /m", "nvidia-container-cli: no"])
def test_a_snap_explains_what_it_cannot_do(said: str) -> None:
    assert trouble_of(DockerRefused(said), lambda path: path.startswith("/snap/")).id == "DOCKER_SNAP"
    assert trouble_of(DockerRefused("no space left"), lambda _: True).id == "DOCKER_NO_SPACE"


def test_all_of_them_are_in_the_catalogue() -> None:
    named = [one for one in vars(docker_trouble).values() if isinstance(one, Trouble)]
    assert len(named) > 5
    assert not [one.id for one in named if one.id not in catalogue()]


def test_the_gpu_is_asked_for_as_the_engine_can_give_it() -> None:
    runtime = gpu_requests(
        {"Runtimes": {"runc": {}, "nvidia": {}}, "CDISpecDirs": ["/etc/cdi"]}, lambda _: True
    )
    assert runtime[0]["Driver"] == "nvidia"
    described = gpu_requests({"Runtimes": {"runc": {}}, "CDISpecDirs": ["/etc/cdi"]}, lambda _: True)
    assert described == ({"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]},)
    for info in ({"Runtimes": {"runc": {}}}, {"Runtimes": None, "CDISpecDirs": ["/etc/cdi"]}):
        with pytest.raises(DockerRefused) as refused:
            gpu_requests(info, lambda _: False)
        assert trouble_of(refused.value, lambda _: False).id == "DOCKER_NO_GPU"


INSPECTED: dict[str, Any] = {
    "Id": "sha256:1",
    "Os": "linux",
    "Architecture": "arm64",
    "RepoTags": ["a:1"],
    "Created": "2026-11-30T00:00:00Z",
    "RootFS": {"Type": "layers", "Layers": ["sha256:x", "sha256:y"]},
    "Config": {"Env": ["PATH=/bin"], "Cmd": None, "Entrypoint": ["vllm"], "User": "", "Image": "sha256:0"},
}


def changed(*path: str, to: object) -> dict[str, Any]:
    found = copy.deepcopy(INSPECTED)
    place = found
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = to
    return found


def test_one_content_has_one_identity_whoever_keeps_it() -> None:
    """containerd's store has other ids, and leaves out what is empty; a build of the same another date."""
    same = identity_of(INSPECTED)
    for path, to in (
        (("Id",), "sha256:2"),
        (("Created",), "2026-12-01T00:00:00Z"),
        (("RepoTags",), []),
        (("Config", "Cmd"), []),
        (("Config", "Image"), ""),
    ):
        assert identity_of(changed(*path, to=to)) == same
    bare = copy.deepcopy(INSPECTED)
    del bare["Config"]["User"], bare["Config"]["Cmd"]
    assert identity_of(bare) == same


@pytest.mark.parametrize(
    ("path", "to"),
    [
        (("RootFS", "Layers"), ["sha256:y", "sha256:x"]),
        (("Architecture",), "amd64"),
        (("Config", "Env"), ["PATH=/usr/bin"]),
        (("Config", "User"), "vllm"),
    ],
)
def test_another_content_has_another(path: tuple[str, ...], to: object) -> None:
    assert identity_of(changed(*path, to=to)) != identity_of(INSPECTED)


CONFIG = """
[node]
id = "n"
name = "n"
address = "127.0.0.1"
[coordinator]
urls = ["http://127.0.0.1:1"]
token_file = "/t"
holder = "h"
[state]
dir = "/s"
"""


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", DockerConfig()),
        ('[docker]\nsocket = "/x"\nimages = "present"', DockerConfig("/x", "present")),
        ('[docker]\nimages = ["a:1", "b"]', DockerConfig(images=("a:1", "b"))),
    ],
)
def test_the_configuration_says_which_images_may_run(tmp_path: Path, text: str, wanted: DockerConfig) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(CONFIG + text)
    assert read_config(file).docker == wanted


@pytest.mark.parametrize("text", ["[docker]\nimages = []", '[docker]\nimages = "all"', "[docker]\nimage = 1"])
def test_a_configuration_that_says_nothing_of_the_kind(tmp_path: Path, text: str) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(CONFIG + text)
    with pytest.raises(UsageError, match="docker"):
        read_config(file)
