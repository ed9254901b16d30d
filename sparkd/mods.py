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
    return _answer(str(python), [_absolute(str(python)), *_COMMAND, verb, *names], env)


def ask_mods_in_image(
    image: str, verb: Verb, names: Sequence[str] = (), *, environ: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """The same of the vLLM in an image that is on this machine, through its `docker`. Raises as `ask_mods`.

    Its `python3` runs in a container without a network that cannot write, and the mods are mounted.
    """
    folder = plugin_folder()
    words = ["docker", "run", "--rm", "--pull=never", "--network=none", "--read-only", "--cap-drop=ALL"]
    words += [
        "--security-opt=no-new-privileges",
        f"--mount=type=bind,source={folder},target={folder},readonly",
    ]
    words += [f"--env={PATH_VARIABLE}={folder}", "--workdir=/", "--entrypoint=python3", image]
    return _answer(image, [*words, *_COMMAND, verb, *names], environ)


def _answer(whose: str, words: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
    try:
        done = subprocess.run(
            words,
            env=env,
            cwd="/",  # a folder `vllm` beside the caller is not the installed one
            capture_output=True,
            text=True,
            timeout=DEFAULTS.mods_answer_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{whose}: cannot be asked: {error}") from error
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [""]
        # Of a container that could not be started Docker's client says more afterwards, but not why.
        last = next((line for line in said if line.startswith("docker: ")), said[-1])
        if last.startswith("there is no mod "):
            raise NotFound(last)
        raise UsageError(f"{whose}: the mods could not be read there: {last}")
    try:
        return msgspec.json.decode(done.stdout, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise UsageError(f"{whose}: is no python: it answered nothing that can be read") from error


def _absolute(python: str) -> str:
    """A link stays one: a virtual environment is known by its own path. A bare name is looked up."""
    return os.path.abspath(python) if "/" in python else python  # noqa: PTH100
