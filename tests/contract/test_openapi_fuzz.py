"""schemathesis over the coordinator's own OpenAPI document: whatever it makes up, nothing fails inside."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from sparkd.profile.lookup import load_profile
from sparkd.profile.merge import resolve
from tests.bed.agent_process import until
from tests.bed.coordinator import coordinator
from tests.bed.fake_agent import PlayedNode

CONFIG = """
[headers]
Authorization = "Bearer ${SPARKD_TEST_TOKEN}"

[parameters]
"path.name" = ["tiny", "n1", "nobody"]
"""
WITHOUT = ("/v1/events", "/v1/deployments/{name}/ready", "/v1/fabric/collectives")
"""A stream that does not end, the one route whose answer is 503 by design, and one that takes a minute where
nodes are played. test_rest.py and test_collective.py try them."""


@pytest.mark.timeout(600)
def test_no_request_makes_the_coordinator_fail(tmp_path: Path) -> None:
    with coordinator(tmp_path, ("n1", "n2"), startup_hold_s=0.2) as one:
        nodes = [PlayedNode(one, node) for node in ("n1", "n2")]
        try:
            until(lambda: one.ask("DELETE", "/v1/deployments/absent").status == 404, "the hold to be over")
            wish = {"intent": msgspec.to_builtins(resolve(load_profile("tiny")).intent)}
            assert one.ask("PUT", "/v1/deployments/tiny", wish).status == 201
            (tmp_path / "schemathesis.toml").write_text(CONFIG)
            program = Path(sys.executable).with_name("schemathesis")
            argv = [
                *(str(program), "--no-color", "--config-file", str(tmp_path / "schemathesis.toml"), "run"),
                *(f"http://127.0.0.1:{one.rest}/openapi.json", "--checks", "not_a_server_error"),
                *("--phases", "coverage,fuzzing", "--max-examples", "25", "--seed", "1"),
                *(word for path in WITHOUT for word in ("--exclude-path", path)),
                *("--request-timeout", "20", "--generation-database", "none"),
                *("--suppress-health-check", "all", "--continue-on-failure"),
            ]
            env = os.environ | {"SPARKD_TEST_TOKEN": one.token}
            run = subprocess.run(
                argv, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False
            )
            assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
            assert "passed" in run.stdout
            assert one.ask("GET", "/healthz").status == 200
            assert "Traceback" not in one.log
        finally:
            for node in nodes:
                node.stop()
