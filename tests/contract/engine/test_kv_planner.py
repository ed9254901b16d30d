"""Our sum of what a request's KV takes, against the planner of the vLLM that is installed."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.bed.kv_cases import kv_cases, kv_differences

REPOSITORY = Path(__file__).parents[3]
ENGINE = REPOSITORY / ".venv-vllm" / "bin" / "python"

pytestmark = pytest.mark.vllm


def test_a_request_costs_what_vllm_bills() -> None:
    assert ENGINE.exists(), "no vLLM here: make vllm"
    done = subprocess.run(
        [ENGINE, REPOSITORY / "tests" / "bed" / "plan_kv.py"],
        input=json.dumps(kv_cases()),
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    assert kv_differences(json.loads(done.stdout)) == []
