"""Mods with real vLLM: a tiny MiMo served on one rank and on two, and a worker that lacks a required mod."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkd.engine.plugin import ModLine, read_mod_line
from sparkd_agent.procfs import ProcFs
from tests.bed.local_set import Bed, Deployment, ask, local_bed

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
BOOT_S = 240.0
MODS = ("mimo-config", "mimo-fused-qkv")
PROFILE = ("model.path=mimo", f"mods={json.dumps([{'name': mod} for mod in MODS])}")
QUESTIONS = ("Say something.", "12 x 7", "What stays up?")

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(2 * BOOT_S)]

EMULATION = '''
"""vLLM has no MXFP8 kernel for CPUs; its emulation works anywhere."""


def register():
    from vllm.model_executor.kernels import linear
    from vllm.model_executor.kernels.linear.mxfp8.emulation import EmulationMxfp8LinearKernel
    from vllm.platforms import PlatformEnum, current_platform

    linear._POSSIBLE_MXFP8_KERNELS[PlatformEnum.CPU] = [EmulationMxfp8LinearKernel]
    if "modelopt_mixed" not in current_platform.supported_quantization:
        current_platform.supported_quantization.append("modelopt_mixed")
'''

LAUNCHER = """#!{here} -I
import json
import os
import signal
import sys

env = os.environ
env["PYTHONPATH"] = ":".join(filter(None, [env.get("PYTHONPATH"), {plug!r}]))
if env.get("SPARKD_RANK", "").startswith("sparkd-lacking-") and env["SPARKD_RANK"].endswith("-r1"):
    mods = json.loads(env["SPARKD_MODS"])
    env["SPARKD_MODS"] = json.dumps([mod for mod in mods if mod["name"] != {lacks!r}])
os.execv({python!r}, [{python!r}, *sys.argv[1:]])
"""


def engine(folder: Path) -> Path:
    """The python of .venv-vllm with one more plug-in. On rank 1 of `lacking` it hides a mod from vLLM."""
    plug = folder / "plug"
    info = plug / "emulation-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: emulation\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nemulation = emulation:register\n")
    (plug / "emulation.py").write_text(EMULATION)
    launcher = folder / "bin" / "python"
    launcher.parent.mkdir()
    text = LAUNCHER.format(here=sys.executable, plug=str(plug), python=str(PYTHON), lacks=MODS[1])
    launcher.write_text(text)
    launcher.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    make = ROOT / "tests" / "bed" / "make_mimo_model.py"
    subprocess.run([PYTHON, make, ROOT / ".models" / "mimo"], check=True, capture_output=True)
    folder = tmp_path_factory.mktemp("mods")
    with local_bed(folder, engine(folder / "engine"), ROOT / ".models") as bed:
        yield bed


def told(bed: Bed, deployment: Deployment, rank: int) -> list[ModLine]:
    """What the mods of a rank's processes said, read from its log as a user sees it."""
    lines = bed.client.logs(deployment.name, rank=rank)
    return [found for line in lines if (found := read_mod_line(line.text)) is not None]


@pytest.fixture(scope="module")
def alone(bed: Bed) -> list[str]:
    """What one rank answers."""
    deployment = bed.up(f"alone{os.getpid()}", *PROFILE, "layout.tp=1")
    deployment.ready(timeout_s=BOOT_S)
    answers = [ask(deployment, question, temperature=0, max_tokens=32) for question in QUESTIONS]
    deployment.down()
    return answers


def test_two_ranks_answer_as_one_does_and_their_workers_told_of_the_mods(bed: Bed, alone: list[str]) -> None:
    deployment = bed.up(f"pair{os.getpid()}", *PROFILE)
    deployment.ready(timeout_s=BOOT_S)
    assert [ask(deployment, question, temperature=0, max_tokens=32) for question in QUESTIONS] == alone
    for rank in (0, 1):
        worker = deployment.process(rank, "VLLM::Worker")
        mine = [line for line in told(bed, deployment, rank) if line.pid == worker.pid]
        assert {line.mod for line in mine if line.state == "applied"} == set(MODS)
        # The plug-in's other duty: every one of them can be asked for its stacks.
        essential = [one for one in deployment.processes(rank) if one.title.startswith("VLLM::")]
        assert essential
        assert all(ProcFs().catches(one.pid, signal.SIGUSR2) for one in essential)
    deployment.down()


def test_a_worker_without_a_required_mod_fails_the_launch_and_is_named(bed: Bed) -> None:
    deployment = bed.up("lacking", *PROFILE)
    failed = deployment.until("failed", timeout_s=BOOT_S)
    assert failed.generation == 1, "no retry cures it"
    (verdict,) = failed.verdicts
    assert (verdict.id, verdict.rank) == ("MOD_MISSING", 1)
    assert f"required mod {MODS[1]} is missing in VLLM::Worker" in verdict.title
    assert "it never told of it" in verdict.title
