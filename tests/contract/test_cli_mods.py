"""`sparkd mods` as a user runs it, against a vLLM that is only sources."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sparkd.engine.plugin import known_mods

SPARKD = Path(sys.executable).with_name("sparkd")


def sparkd(*words: str, engine: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {"PYTHONPATH": str(engine)} if engine else {}
    argv = [str(SPARKD), "mods", *words]
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """A vLLM that has nothing but MiMo's Omni model, in which one mod sets an attribute and others wrap."""
    folder = tmp_path / "vllm" / "model_executor" / "models"
    folder.mkdir(parents=True)
    (folder / "mimo_v2_omni.py").write_text("class MiMoVisionPatchMerger:\n    def __init__(self): pass\n")
    (tmp_path / "vllm" / "__init__.py").touch()
    info = tmp_path / "vllm-0.33.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.33.1\n")
    return tmp_path


def test_list_tells_of_every_mod(tmp_path: Path) -> None:
    listed = json.loads(sparkd("list", "-o", "json").stdout)
    assert [mod["name"] for mod in listed] == list(known_mods())
    assert all(mod[key] for mod in listed for key in ("summary", "why", "upstream", "versions", "needed"))
    text = sparkd("list").stdout
    assert all(name in text for name in known_mods())
    assert "setting order: plain | interleaved" in text


def test_check_says_what_applies_and_fails_for_what_would_be_refused(engine: Path) -> None:
    done = sparkd("check", "mimo-packed-modules", "--python", sys.executable, engine=engine)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["vLLM 0.33.1", "mimo-packed-modules  applies"]
    every = sparkd("check", "--python", sys.executable, "-o", "json", engine=engine)
    assert every.returncode == 1
    reasons = {mod["name"]: mod["reason"] for mod in json.loads(every.stdout)["mods"]}
    assert reasons["mimo-fused-qkv"] == "this vLLM has no module vllm.model_executor.models.mimo_v2"


def test_fingerprint_prints_lines_to_paste(engine: Path) -> None:
    shown = sparkd("fingerprint", "mimo-vision-merger", "--python", sys.executable, engine=engine).stdout
    assert "MiMoVisionPatchMerger.__init__" in shown
    assert shown.rstrip().endswith('": NEEDED,  # 0.33.1 (unknown)')


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("check", "no-such-mod", "--python", sys.executable), 1, "there is no mod no-such-mod; there are:"),
        (("check", "--python", "/nowhere/python"), 2, "/nowhere/python: cannot be asked"),
        (("check", "--python", str(shutil.which("true"))), 2, "is no python"),
        (("fingerprint", "mimo-config"), 2, "--python"),
    ],
)
def test_what_cannot_be_asked_is_said(words: tuple[str, ...], code: int, says: str) -> None:
    done = sparkd(*words)
    assert done.returncode == code
    assert says in done.stderr
    assert "Traceback" not in done.stderr
