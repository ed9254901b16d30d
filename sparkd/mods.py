"""What the mods say of themselves and of a vLLM: asked of an interpreter, as vLLM lives in another one."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from sparkd.engine.plugin import PATH_VARIABLE, plugin_folder
from sparkd.errors import NotFound, UsageError
from sparkd.records.defaults import DEFAULTS

Verb = Literal["list", "check", "fingerprint", "verify"]
_COMMAND: Final = ("-m", "sparkd_mods._framework.command")


def ask_mods(
    python: str | Path,
    verb: Verb,
    names: Sequence[str] = (),
    *,
    environ: Mapping[str, str] = os.environ,
    folder: Path | None = None,
) -> dict[str, Any]:
    """`{"vllm": version or None, "mods": […]}`. That python's vLLM is looked at, not started.

    `verify` takes a checkpoint's folder and a profile's `hf-overrides` as JSON before the names, and answers
    `{"findings": [{"severity", "text"}], "tensors": count}`. `folder` holds `sparkd_mods`; the built-in one
    unless given. Raises UsageError for a python that cannot be run, NotFound for a mod that does not exist.
    """
    env = {name: value for name, value in environ.items() if name != PATH_VARIABLE}
    paths = (str(folder or plugin_folder()), environ.get(PATH_VARIABLE, ""))
    env[PATH_VARIABLE] = ":".join(filter(None, paths))
    try:
        done = subprocess.run(
            [_absolute(str(python)), *_COMMAND, verb, *names],
            env=env,
            cwd="/",  # a folder `vllm` beside the caller is not the installed one
            capture_output=True,
            text=True,
            timeout=DEFAULTS.mods_answer_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{python}: cannot be asked: {error}") from error
    if done.returncode != 0:
        last = done.stderr.strip().rpartition("\n")[2]
        if last.startswith("there is no mod "):
            raise NotFound(last)
        raise UsageError(f"{python}: the mods could not be read there: {last}")
    try:
        return msgspec.json.decode(done.stdout, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise UsageError(f"{python}: is no python: it answered nothing that can be read") from error


def _absolute(python: str) -> str:
    """A link stays one: a virtual environment is known by its own path. A bare name is looked up."""
    return os.path.abspath(python) if "/" in python else python  # noqa: PTH100
