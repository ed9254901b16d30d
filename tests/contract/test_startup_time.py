"""`sparkd --help` and `status` feel instant. Held by what they load, not by times of a shared machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bed.fake_coordinator import FakeCoordinator

HEAVY = {
    "rich",
    "pydantic",
    "pydantic_core",
    "fastapi",
    "httpx2",
    "yaml",
    "asyncio",
    "uvicorn",
    "psutil",
}

LOADED = """
import sys, json
from sparkd.cli import main
code = main(sys.argv[1:])
print(json.dumps([code, sorted({name.partition(".")[0] for name in sys.modules})]), file=sys.stderr)
"""


@pytest.mark.parametrize("words", [["--help"], ["status"], ["down", "--help"], ["logs", "--help"]])
def test_nothing_heavy_is_loaded(tmp_path: Path, words: list[str]) -> None:
    with FakeCoordinator() as fake:
        (tmp_path / "token").touch(0o600)
        (tmp_path / "token").write_text(fake.token)
        fake.on("GET", "/v1/status", {"deployments": [], "nodes": []})
        env = os.environ | {
            "SPARKD_COORDINATOR": fake.url,
            "SPARKD_TOKEN_FILE": str(tmp_path / "token"),
            "SPARKD_CONFIG_DIR": str(tmp_path),
            "XDG_STATE_HOME": str(tmp_path),
        }
        run = subprocess.run(
            [sys.executable, "-c", LOADED, *words],
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    code, modules = json.loads(run.stderr)
    assert code == 0
    assert HEAVY & set(modules) == set()
