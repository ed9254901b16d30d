"""Never a signal to a process that is not the rank's, also where every pid was another's a moment ago."""

import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("scene", ["leader", "session", "churn"])
def test_no_outsider_is_signalled(tmp_path: Path, scene: str) -> None:
    alone = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("a pid namespace needs root")
    done = subprocess.run(
        [*alone, sys.executable, "-m", "tests.bed.pid_reuse", str(tmp_path), scene],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    if done.returncode == 77:
        pytest.skip("this kernel has one pid_max for all namespaces")
    assert done.returncode == 0, done.stderr
