"""What a profile says reaches the engine's processes to the byte: CLI, coordinator, agent, shim, execve."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkd_agent.procfs import FOLDER_VARIABLE, RANK_VARIABLE
from sparkd_agent.runtime.base import ALLOWED_ENVIRONMENT
from tests.bed.local_set import Bed, local_bed
from tests.bed.ports import free_port
from tests.bed.stand_in import make_stand_in
from tests.bed.weights import shard

AWKWARD = (
    """spaces  two, 'single' "double" $HOME ${PATH} $(id) `id` \\ back; & | * ? ~ # %s {x}"""
    "\nnewline\ttab ünï 模型 🙂"
)
"""What a shell, systemd, YAML or a format could take for something else. Model roots may hold no colon."""


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    models = tmp_path / f"models {AWKWARD}"
    for name in ("model", "draft"):
        (models / f"{name} {AWKWARD}").mkdir(parents=True)
        (models / f"{name} {AWKWARD}" / "config.json").write_text("{}")
        shard(models / f"{name} {AWKWARD}" / "a.safetensors", {"weight": 16})
    with local_bed(tmp_path, make_stand_in(tmp_path / "engine"), models) as bed:
        yield bed


def write_profile(folder: Path) -> Path:
    folder.mkdir()
    (folder / f"words {AWKWARD}").write_text(AWKWARD)
    file = folder / "profile.yaml"
    words = {
        "schema": "sparkd/v1",
        "name": "awkward",
        "model": {"path": f"model {AWKWARD}", "also": {"draft": {"path": f"draft {AWKWARD}"}}},
        "layout": {"tp": 2},
        "engine": {
            "vllm": ">=0.24",
            "files": {"words.txt": f"words {AWKWARD}"},
            "args": {
                "override-generation-config": {"stop": AWKWARD, "nested": {"$": [1, None, True]}},
                "chat-template": AWKWARD,
                "allowed-origins": [AWKWARD, "", " "],
                "additional-config": {"draft": "also:draft", "words": "files:words.txt"},
            },
        },
        "env": {"AWKWARD": AWKWARD, "EMPTY_LIKE": " "},
        "ready": {"canaries": [{"messages": [{"role": "user", "content": AWKWARD}]}]},
    }
    file.write_text(json.dumps(words, ensure_ascii=False))  # JSON is YAML, but for its surrogate pairs
    return file


def sparkd(bed: Bed, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "sparkd", *words],
        env=bed.env,
        cwd=bed.folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def words_of(pid: int, what: str) -> list[str]:
    return [os.fsdecode(word) for word in Path(f"/proc/{pid}/{what}").read_bytes().split(b"\0")[:-1]]


def after(argv: list[str], flag: str, count: int = 1) -> list[str]:
    at = argv.index(flag) + 1
    return argv[at : at + count]


def test_every_word_arrives(bed: Bed) -> None:
    profile = write_profile(bed.folder / f"profiles {AWKWARD}")
    asked = (str(profile), "--local", "2", "--name", "awkward", "--set", f"api.port={free_port()}")
    extra = ("--", "--served-model-alias-of-nobody", AWKWARD)
    planned: dict[str, Any] = json.loads(sparkd(bed, "plan", *asked, "-o", "json", *extra))
    sparkd(bed, "up", *asked, *extra)
    ranks = bed.client.deployment("awkward").ranks
    model = str(bed.models / f"model {AWKWARD}")
    for rank, plan in zip(ranks, planned["ranks"], strict=True):
        assert rank.pid is not None
        argv = words_of(rank.pid, "cmdline")
        assert after(argv, "serve") == [model]
        assert after(argv, "--chat-template") == [AWKWARD]
        assert after(argv, "--served-model-alias-of-nobody") == [AWKWARD]
        (config,) = after(argv, "--override-generation-config")
        assert json.loads(config) == {"stop": AWKWARD, "nested": {"$": [1, None, True]}}
        (further,) = map(json.loads, after(argv, "--additional-config"))
        assert further["draft"] == str(bed.models / f"draft {AWKWARD}")
        assert Path(further["words"]).read_text() == AWKWARD
        environment = words_of(rank.pid, "environ")
        assert f"AWKWARD={AWKWARD}" in environment
        # Built from scratch: what the plan shows, the allow-list, the rank's own name, where the plug-in is.
        names = {word.partition("=")[0] for word in environment}
        planned_names = {variable["name"] for variable in plan["env"]}
        assert planned_names <= names
        assert names - planned_names <= {
            *ALLOWED_ENVIRONMENT,
            RANK_VARIABLE,
            FOLDER_VARIABLE,
            "PYTHONPATH",
        }
        assert "SPARKD_ENGINE" in bed.env
        # As planned, but for the rendezvous port, which the coordinator chose at the launch.
        port = argv.index("--master-port") + 1
        expected = [word for arg in plan["args"] for word in arg["words"]]
        found = argv[argv.index("serve") :]
        assert after(expected, "--master-port") != []
        expected[expected.index("--master-port") + 1] = argv[port]
        assert found == expected
