"""sparkd's plug-in for vLLM: the folder that a rank finds it in, and the lines that its mods tell.

The folder holds the package `sparkd_mods` and its entry point. On `PYTHONPATH` it is found by every process
of a rank; nothing is installed, and no file of vLLM is changed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec

from sparkd.engine.collective import PROBE_MODULE

MODS_VARIABLE: Final = "SPARKD_MODS"
PATH_VARIABLE: Final = "PYTHONPATH"
PLUGINS_VARIABLE: Final = "VLLM_PLUGINS"
ENTRY_POINT: Final = "sparkd"
LINE_PREFIX: Final = "sparkd-mod "
"""Before the JSON of `sparkd_mods._framework.journal`; read by agents of later versions too."""


class ModRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One mod of a rank: an entry of the variable SPARKD_MODS, which is a JSON list."""

    name: str
    required: bool = True
    unknown: Literal["refuse", "try"] = "refuse"
    settings: dict[str, str] = {}


def plugin_folder() -> Path:
    """In the package, or beside it in a checkout."""
    packed = Path(__file__).parent / "plugin_folder"
    return packed if packed.is_dir() else Path(__file__).parents[2] / "agents"


def known_mods(folder: Path | None = None) -> tuple[str, ...]:
    """The names of the mods that this sparkd brings along: one file or package each."""
    found = ((folder or plugin_folder()) / "sparkd_mods").iterdir()
    names = {path.stem for path in found if path.suffix == ".py" or (path / "__init__.py").is_file()}
    names.discard(PROBE_MODULE.rpartition(".")[2])
    return tuple(sorted(name.replace("_", "-") for name in names if not name.startswith("_")))


def with_plugin(env: Mapping[str, str], folder: Path) -> dict[str, str]:
    """A rank's environment with the plug-in: before what else is on PYTHONPATH, and past an allow-list."""
    paths = [str(folder), *filter(None, env.get(PATH_VARIABLE, "").split(":"))]
    found = {**env, PATH_VARIABLE: ":".join(dict.fromkeys(paths))}
    if PLUGINS_VARIABLE in env:
        allowed = filter(None, env[PLUGINS_VARIABLE].split(","))
        found[PLUGINS_VARIABLE] = ",".join(dict.fromkeys([*allowed, ENTRY_POINT]))
    return found


def encode_requests(requests: Sequence[ModRequest]) -> str:
    return msgspec.json.encode(requests).decode()


def read_requests(env: Mapping[str, str]) -> tuple[ModRequest, ...]:
    """What a rank was told to use; nothing for a variable that is not sparkd's."""
    return _decoded(env.get(MODS_VARIABLE, "[]"), tuple[ModRequest, ...]) or ()


class ModLine(msgspec.Struct, frozen=True):
    """What one process tells of one mod."""

    pid: int
    mod: str
    state: Literal["pending", "applied", "not needed", "refused"]
    role: str = ""
    target: str = ""
    reason: str = ""


_T = TypeVar("_T")


def _decoded(text: str, kind: type[_T]) -> _T | None:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError:
        return None


def read_mod_line(text: str) -> ModLine | None:
    """None for any other line of a rank's log, and for one that was cut off."""
    _, found, body = text.partition(LINE_PREFIX)
    return _decoded(body, ModLine) if found else None


@dataclass(frozen=True, slots=True)
class ModsSeen:
    """What the processes of one rank told, by pid and mod."""

    told: Mapping[tuple[int, str], ModLine] = field(default_factory=dict)

    def read(self, lines: Iterable[str]) -> "ModsSeen":
        found = [line for text in lines if (line := read_mod_line(text)) is not None]
        if not found:
            return self
        told = dict(self.told)
        for line in found:
            before = told.get((line.pid, line.mod))
            # A mod with several targets counts as applied with the first, and as refused with any.
            if before is None or before.state == "pending" or line.state == "refused":
                told[line.pid, line.mod] = line
        return replace(self, told=told)

    def missing(self, requests: Iterable[ModRequest], pid: int, process: str) -> str | None:
        """Why a process whose model is loaded may not serve: a required mod that it did not apply."""
        for request in requests:
            line = self.told.get((pid, request.name))
            if not request.required or (line is not None and line.state in {"applied", "not needed"}):
                continue
            if line is None:
                told = "it never told of it: sparkd's plug-in did not run there"
            elif line.state == "pending":
                told = "it never imported what the mod changes"
            else:
                told = line.reason or line.state
            return f"required mod {request.name} is missing in {process} (pid {pid}): {told}"
        return None
