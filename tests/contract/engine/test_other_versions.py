"""What we say of other versions of vLLM than the installed one, against those versions themselves."""

import ast
import json
import os
import subprocess
from itertools import chain
from pathlib import Path

import pytest

from sparkd.engine.flags import KNOWN
from sparkd.engine.release_table import VARIABLES
from sparkd.engine.releases import flag_missing, variable_missing
from sparkd.engine.versions import VersionRange
from sparkd_mods._framework import look
from tests.bed.builtin_plans import builtin_names, builtin_plan
from tests.bed.kv_cases import kv_cases, kv_differences

REPOSITORY = Path(__file__).parents[3]
ENGINE = REPOSITORY / ".venv-vllm" / "bin" / "python"
VERSIONS = Path(os.environ.get("SPARKD_VLLM_VERSIONS") or Path.home() / ".cache" / "sparkd-tests" / "vllm")

pytestmark = [pytest.mark.mods, pytest.mark.timeout(300)]


@pytest.fixture(params=["0.24.0", "0.33.0"])
def version(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    assert (VERSIONS / found / "complete").exists(), "not here: make vllm-versions"
    return found


def run(version: str, script: str, stdin: str = "") -> str:
    places = (VERSIONS / version, VERSIONS / "orjson")
    done = subprocess.run(
        [ENGINE, REPOSITORY / "tests" / "bed" / script],
        input=stdin,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places)), "VLLM_LOGGING_LEVEL": "ERROR"},
        cwd=VERSIONS,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def keys_of(source: str, name: str) -> set[str]:
    """The literal keys of the dictionary with this name."""
    for node in ast.walk(ast.parse(source)):
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        named = [target.id for target in targets if isinstance(target, ast.Name)] == [name]
        if named and isinstance(node.value, ast.Dict):
            return {key.value for key in node.value.keys if isinstance(key, ast.Constant)}
    raise LookupError(name)


def test_each_flag_is_there_or_missing_as_the_table_says(version: str) -> None:
    theirs = keys_of(run(version, "dump_vllm_flags.py"), "TABLE")
    # Those that `serve` handles outside its parser.
    ours = {name for name in KNOWN if not flag_missing(name, version)} - {"omni", "version"}
    assert ours == theirs


def test_the_sources_in_an_image_tell_its_flags(version: str) -> None:
    """Without importing them; a few names more do no harm."""
    theirs = keys_of(run(version, "dump_vllm_flags.py"), "TABLE")
    found = set(look.flags(VERSIONS / version / "vllm") or ())
    assert theirs - found == set()
    assert len(found - theirs) < 10


def test_each_variable_is_there_or_missing_as_the_table_says(version: str) -> None:
    source = (VERSIONS / version / "vllm" / "envs.py").read_text()
    ours = {name for name in VARIABLES if not variable_missing(name, version)}
    # Had by 0.31 and 0.32, and by those before 0.29: the table keeps one span for each name.
    assert ours - {"VLLM_ROCM_USE_AITER_FP4_ASM_GEMM"} == keys_of(source, "environment_variables") - {
        "VLLM_ROCM_USE_AITER_FP4_ASM_GEMM"
    }


def test_it_reads_the_commands_of_the_profiles_that_state_it(version: str) -> None:
    plans = [builtin_plan(*asked, version) for asked in builtin_names()]
    stating = [
        plan
        for plan in plans
        if VersionRange.parse(plan.ranks[0].spec.descriptor.intent.profile["engine"]["vllm"]).contains(
            version
        )
    ]
    assert any(plan.deployment.startswith("mimo") for plan in stating)
    lines = list(chain.from_iterable([list(rank.spec.args) for rank in plan.ranks] for plan in stating))
    results = json.loads(run(version, "parse_vllm_args.py", json.dumps(lines)))
    assert [result for result in results if isinstance(result, str)] == []


def test_a_request_costs_what_the_newest_planner_bills() -> None:
    assert kv_differences(json.loads(run("0.33.0", "plan_kv.py", json.dumps(kv_cases())))) == []
