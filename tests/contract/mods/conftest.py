"""vLLM of several versions, each in an interpreter of its own that answers to cases by name."""

import json
import os
import select
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
VERSIONS = Path(os.environ.get("SPARKD_VLLM_VERSIONS") or Path.home() / ".cache" / "sparkd-tests" / "vllm")
ALL = ("0.24.0", "0.32.0", "0.33.0")
ANSWER_S = 240
MODS = ("mimo-config", "mimo-fused-qkv", "mimo-mtp-fused-qkv", "mimo-mxfp8-mixed", "mimo-packed-modules")
MODS += ("mimo-nvfp4-kv", "mimo-vision-merger", "nvfp4-marlin-repack")
MODS += ("autoround-mixed", "minimax-m3-loader", "minimax-m3-norm")
PAGES = "mimo-drafter-pages"
"""Made for 0.32 and later."""


def paths(version: str) -> list[str]:
    """What comes first on PYTHONPATH for a version; 0.32.0 is the one that is installed."""
    found = [] if version == "0.32.0" else [str(VERSIONS / version)]
    missing = [path for path in (*found, str(PYTHON)) if not Path(path).exists()]
    assert not missing, f"not here: {missing}; make vllm-versions"
    return found


class Inside:
    def __init__(self, version: str, mods: tuple[dict[str, Any], ...], folder: Path) -> None:
        self.version = version
        self.errors = folder / "stderr"
        read, write = os.pipe()
        with self.errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [PYTHON, "-u", "-m", "inside", str(write), VERSIONS / "torchvision"],
                stdin=subprocess.PIPE,
                stdout=errors,
                stderr=errors,
                pass_fds=(write,),
                cwd=folder,
                env={
                    **os.environ,
                    "PYTHONPATH": ":".join(
                        [*paths(version), str(ROOT / "agents"), str(Path(__file__).parent), str(ROOT)]
                    ),
                    "SPARKD_MODS": json.dumps(mods),
                    "VLLM_CACHE_ROOT": str(folder / "cache"),
                    "HF_HUB_OFFLINE": "1",
                    "HF_HOME": str(folder / "huggingface"),
                },
            )
        os.close(write)
        self._answers = os.fdopen(read)

    def call(self, case: str, **arguments: Any) -> Any:
        """The result of `inside.MODULE.FUNCTION`; fails with its traceback."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"case": case, "args": arguments}).encode() + b"\n")
        self._process.stdin.flush()
        return self._answer()

    def lines(self) -> list[dict[str, Any]]:
        """What the mods told so far."""
        told = (line.partition("sparkd-mod ") for line in self.errors.read_text().splitlines())
        return [json.loads(rest) for _, found, rest in told if found]

    def _answer(self) -> Any:
        ready, _, _ = select.select([self._answers], [], [], ANSWER_S)
        line = self._answers.readline() if ready else ""
        assert line, f"no answer from vLLM {self.version}: {self.errors.read_text()[-4000:]}"
        answer = json.loads(line)
        assert "ok" in answer, answer["error"]
        return answer["ok"]

    def __enter__(self) -> Self:
        self._answer()  # its first line: it is ready
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._answers.close()
        assert self._process.stdin is not None
        self._process.stdin.close()


@pytest.fixture(scope="session", params=ALL)
def inside(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    wanted = MODS if request.param == "0.24.0" else (*MODS, PAGES)
    mods = tuple({"name": name} for name in wanted)
    with Inside(request.param, mods, tmp_path_factory.mktemp("inside")) as started:
        yield started
