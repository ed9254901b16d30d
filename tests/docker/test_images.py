"""Images in a real engine: which content a name stands for, what is in it, and what may not run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sparkd.engine.flag_table import TABLE
from sparkd.engine.plugin import known_mods
from sparkd.errors import DockerRefused, DockerUnreachable, ImageUnusable
from sparkd_agent.runtime.docker_api import DockerApi
from sparkd_agent.runtime.images import COMMAND, Images
from tests.bed.stand_in import VERSION
from tests.docker.conftest import IMAGE, NOTHING, SITE
from tests.docker.engine import DockerEngine

ROOT = Path(__file__).parents[2]


@pytest.fixture
def images(engine: DockerEngine, tmp_path: Path) -> Images:
    return Images(engine.api, tmp_path / "images")


def test_what_is_in_an_image_is_read_once(images: Images, engine: DockerEngine, tmp_path: Path) -> None:
    report = images.report(IMAGE)
    assert (report.facts.vllm, report.facts.torch, report.facts.uid) == (VERSION, None, 0)
    assert report.facts.python.startswith("3.")
    assert report.command == COMMAND
    # Its own vLLM is a stand-in: no sources of flags, and nothing that a mod would wrap.
    assert report.facts.flags is None
    assert {mod.name for mod in report.facts.mods} == set(known_mods())
    assert {mod.verdict for mod in report.facts.mods} == {"unknown"}
    # No engine could run anything now.
    unable = Images(engine.api, tmp_path / "images")
    (tmp_path / "images" / f"{report.identity}.json").write_bytes(
        (tmp_path / "images" / f"{report.identity}.json").read_bytes().replace(b"0.32.0", b"0.00.0")
    )
    assert unable.report(IMAGE).facts.vllm == "0.00.0"
    assert engine.containers() == []


def test_flags_and_what_mods_wrap_are_read_from_the_images_sources(
    images: Images, engine: DockerEngine
) -> None:
    """Of a vLLM that the agent's node has not: nothing of it can be imported there."""
    name = "sparkd-tests/with-sources:1"
    (real,) = (ROOT / ".venv-vllm" / "lib").resolve().glob("python3*/site-packages/vllm")
    wanted = [real / "engine/arg_utils.py", *real.glob("entrypoints/**/cli_args.py")]
    wanted += [real / "entrypoints/cli/serve.py", real / "transformers_utils/config.py"]
    files = {f"{SITE}/vllm/{file.relative_to(real)}": file.read_text() for file in wanted}
    engine.import_files("sparkd-tests/sources:1", files)
    recipe = engine.folder / "with-sources"
    recipe.mkdir()
    stages = ("FROM sparkd-tests/sources:1 AS sources", f"FROM {IMAGE}", "COPY --from=sources / /")
    (recipe / "Dockerfile").write_text("\n".join(stages) + "\n")
    engine.docker("build", "-t", name, str(recipe))
    facts = images.report(name).facts
    assert set(TABLE) <= set(facts.flags or ())
    (config,) = [mod for mod in facts.mods if mod.name == "mimo-config"]
    assert len(config.fingerprints) > 0
    assert all(key.startswith("vllm.transformers_utils.config ") for key in config.fingerprints)


def test_a_spoilt_note_is_made_anew(images: Images, tmp_path: Path) -> None:
    before = images.report(IMAGE)
    (tmp_path / "images" / f"{before.identity}.json").write_text("{")
    assert images.report(IMAGE) == before


def test_an_image_in_which_nothing_runs(images: Images, engine: DockerEngine) -> None:
    with pytest.raises(ImageUnusable, match="has no python that runs"):
        images.report(NOTHING)
    assert engine.containers() == []


def test_a_name_that_moves_on_is_noticed(images: Images, engine: DockerEngine) -> None:
    moving = "sparkd-tests/moving:1"
    engine.import_files(moving, {"one": "1"})
    first = images.find(moving)
    engine.docker("tag", moving, "sparkd-tests/other:1")
    assert images.find("sparkd-tests/other:1").identity == first.identity
    engine.import_files(moving, {"two": "2"})
    second = images.find(moving)
    assert second.identity != first.identity
    assert images.pinned(moving, second.identity) == second
    assert images.pinned(moving, first.identity).id == first.id, "what was planned is still here"
    engine.docker("rmi", "sparkd-tests/other:1")
    with pytest.raises(ImageUnusable, match="no longer what was planned"):
        images.pinned(moving, first.identity)


def test_what_is_saved_and_loaded_is_the_same(images: Images, engine: DockerEngine, tmp_path: Path) -> None:
    name = "sparkd-tests/moved:1"
    engine.import_files(name, {"one": "saved"}, "ENV A=b")
    before = images.find(name)
    engine.docker("save", "-o", str(tmp_path / "image.tar"), name)
    engine.docker("rmi", name)
    with pytest.raises(ImageUnusable, match=r"not on this node: `docker pull`"):
        images.find(name)
    engine.docker("load", "-i", str(tmp_path / "image.tar"))
    assert images.find(name).identity == before.identity


def test_only_what_the_node_allows(engine: DockerEngine, tmp_path: Path) -> None:
    images = Images(engine.api, tmp_path, allow=(IMAGE, "absent:1"))
    assert images.names() == (IMAGE,)
    assert images.find(IMAGE).environment["FROM_IMAGE"] == "yes"
    with pytest.raises(ImageUnusable, match=r"not among those that this node allows: docker\.images"):
        images.find(NOTHING)


def test_an_engine_that_is_not_there_is_told_apart_from_one_that_refuses(
    engine: DockerEngine, tmp_path: Path
) -> None:
    with pytest.raises(DockerUnreachable, match="No such file"):
        DockerApi(str(tmp_path / "nothing")).ask("GET", "/_ping")
    with pytest.raises(DockerRefused, match="No such container") as refused:
        engine.api.ask("POST", "/containers/absent/start")
    assert refused.value.status == 404


def mods_check(engine: DockerEngine, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-P", "-m", "sparkd", "mods", "check", "-o", "json", *words]
    env = {**engine.env, "DOCKER_HOST": f"unix://{engine.socket}"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=100, check=False)


def test_mods_are_checked_against_the_vllm_of_an_image(engine: DockerEngine) -> None:
    checked = mods_check(engine, "--image", IMAGE)
    answer = json.loads(checked.stdout)
    assert answer["vllm"] == VERSION
    assert len(answer["mods"]) > 3
    assert engine.containers() == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--image", "sparkd-tests/absent:1"), "absent:1"),
        (("--image", NOTHING), "python3"),
        (("--image", IMAGE, "--python", "/bin/false"), "--python PATH, or --image IMAGE"),
        ((), "--python PATH, or --image IMAGE"),
    ],
)
def test_what_cannot_be_checked(engine: DockerEngine, words: tuple[str, ...], said: str) -> None:
    refused = mods_check(engine, *words)
    assert refused.returncode == 2
    assert said in refused.stderr
