"""vLLM remembers a model class's traits by the hash of its file, which a mod does not change."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from sparkd.engine.plugin import plugin_folder
from tests.contract.mods.conftest import PYTHON

pytestmark = [pytest.mark.mods, pytest.mark.timeout(300)]

MOD = """
from sparkd_mods._framework.declare import Mod, Target

MOD = Mod(
    summary="s", why="w", upstream="u", versions=">=0.32,<0.34", needed="n",
    targets=(Target("vllm.model_executor.models.mimo_v2", {}),),
    changes_traits=True,
)


def apply(module):
    module.MiMoV2FlashForCausalLM.has_inner_state = True
"""

ASK = """
from vllm.plugins import load_general_plugins
load_general_plugins()
from vllm.model_executor.models.registry import ModelRegistry
print("trait:", ModelRegistry.models["MiMoV2ForCausalLM"].inspect_model_cls().has_inner_state)
"""


def test_a_trait_that_a_mod_adds_is_seen_beside_an_older_entry(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin"
    for part in plugin_folder().glob("sparkd_mods*"):
        shutil.copytree(part, plugin / part.name)
    (plugin / "sparkd_mods" / "trait.py").write_text(MOD)

    def ask(*mods: str) -> str:
        done = subprocess.run(
            [PYTHON, "-c", ASK],
            env={
                **os.environ,
                "PYTHONPATH": str(plugin),
                "SPARKD_MODS": json.dumps([{"name": mod} for mod in mods]),
                "VLLM_CACHE_ROOT": str(tmp_path / "cache"),
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1]

    assert ask() == "trait: False"
    assert list((tmp_path / "cache" / "modelinfos").iterdir()), "vLLM has remembered it"
    assert ask("trait") == "trait: True"
    assert ask() == "trait: False"
