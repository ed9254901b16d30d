"""Everything that can be wrong with a merged profile, all of it at once, each with the path to it."""

import difflib
import re
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from sparkd.engine import flags
from sparkd.engine.code_names import code_named_in
from sparkd.engine.environment import env_refusal
from sparkd.engine.owned import NEEDS_TRUST
from sparkd.engine.releases import flag_gone, variable_gone
from sparkd.engine.versions import VersionRange
from sparkd.errors import ProfileError
from sparkd.profile.layers import Path, merge
from sparkd.profile.references import references
from sparkd.profile.schema import Engine, Profile
from sparkd.records.intent import Intent


@dataclass(frozen=True, slots=True)
class Problem:
    path: Path
    text: str


def check(data: dict[str, Any]) -> tuple[Profile | None, list[Problem]]:
    """The profile, or None and every problem. `data` has engine arguments under canonical names."""
    profile: Profile | None = None
    problems: list[Problem] = []
    try:
        profile = Profile.model_validate(data)
    except ValidationError as error:
        problems += [_problem(details) for details in error.errors(include_url=False)]
    problems += _args(data)
    problems += _env(data)
    return (None, problems) if problems else (profile, [])


def profile_of(intent: Intent) -> Profile:
    """The resolved profile of an intent that was made elsewhere, perhaps by another version of sparkd.

    Raises ProfileError if this version refuses it.
    """
    profile, problems = check(merge({}, intent.profile))
    if profile is None:
        where = f"intent of {intent.profile_name}"
        raise ProfileError([f"{where}: {dotted(problem.path)}: {problem.text}" for problem in problems])
    return profile


def dotted(path: Path) -> str:
    return ".".join(str(key) for key in path)


def _section(data: dict[str, Any], *path: str) -> dict[str, Any]:
    here: Any = data
    for key in path:
        here = here.get(key) if isinstance(here, dict) else None
    return here if isinstance(here, dict) else {}


def _vllm(data: dict[str, Any]) -> VersionRange:
    """The versions that the profile is for; if that is no range (another problem), those of the schema."""
    wanted = _section(data, "engine").get("vllm")
    default = Engine().vllm
    try:
        return VersionRange.parse(wanted if isinstance(wanted, str) else default)
    except ValueError:
        return VersionRange.parse(default)


def _args(data: dict[str, Any]) -> Iterator[Problem]:
    vllm = _vllm(data)
    known = {
        *(f"also:{name}" for name in _section(data, "model", "also")),
        *(f"files:{name}" for name in _section(data, "engine", "files")),
    }
    trusted = _section(data, "model").get("trust") is True
    for name, value in _section(data, "engine", "args").items():
        flag = flags.resolve(name)
        if (problem := flag.problem or flags.value_problem(flag, value)) is not None:
            yield Problem(("engine", "args", name), problem)
        elif (lost := next((text for text in references(value) if text not in known), None)) is not None:
            place = "model.also" if lost.startswith("also:") else "engine.files"
            yield Problem(("engine", "args", name), f"{lost} names nothing that {place} has")
        elif (gone := flag_gone(name, vllm)) is not None:
            yield Problem(("engine", "args", name), gone)
        elif (code := code_named_in(flag.name, name, value)) is not None and not trusted:
            text = f"{code} imports code by name; it needs `model.trust: true`"
            yield Problem(("engine", "args", name), text)
        elif flag.name in NEEDS_TRUST and value is not False and not trusted:
            yield Problem(("engine", "args", name), f"{NEEDS_TRUST[flag.name]}; it needs `model.trust: true`")


def _env(data: dict[str, Any]) -> Iterator[Problem]:
    vllm = _vllm(data)
    for name, value in _section(data, "env").items():
        if (reason := env_refusal(name, str(value))) is not None:
            yield Problem(("env", name), f"may not be set in a profile: {reason}")
        elif (gone := variable_gone(name, vllm)) is not None:
            yield Problem(("env", name), gone)
        elif not flags.encodable(value):
            yield Problem(("env", name), "holds a character that no process can be given")


_EXPECTED: Final = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "a text",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a map",
    "model_type": "a map",
    "model_attributes_type": "a map",
}

_BOUNDS: Final = {
    "greater_than_equal": ("ge", "at least"),
    "less_than_equal": ("le", "at most"),
    "greater_than": ("gt", "more than"),
}


_LIMIT: Final = re.compile(r"(?i)cgroups?([-_.]parent)?|mem(ory)?[-_.]?(max|high|limit|swap.*|reservation)")
_BLIND: Final = (
    "a control group's limit does not see what a GPU takes of unified memory, and ends nothing in time "
    "(CGROUP_BLIND); `memory.floors_gib` is what the node's agent watches"
)
_IMAGE: Final = "a profile names no image: ask for one with `sparkd up --image NAME`"
_FOREIGN: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (_LIMIT, _BLIND),
    (
        re.compile(r"(?i)docker(file)?|containers?([-_]name)?|podman|(docker[-_])?compose|image|build"),
        f"{_IMAGE}; how its containers are run is sparkd's, and the same for all (docs/containers.md)",
    ),
    (
        re.compile(r"(?i)volumes?|mounts?|devices?|gpus|ipc|shm[-_]size|ulimits?|privileged|cap[-_]add"),
        f"a container is given what ranks need without being asked (docs/containers.md); {_IMAGE}",
    ),
    (
        re.compile(r"(?i)systemd|unit|service"),
        "sparkd writes the units of its ranks itself, the same for all profiles (docs/units.md)",
    ),
    (
        re.compile(r"(?i)services|replicas|k8s|kubernetes|pods?|slurm|sbatch|ray|mpi(run)?|torchrun"),
        "sparkd starts one rank on each node itself, and chooses the nodes; `layout` says how many",
    ),
    (
        re.compile(r"(?i)command|cmd|entrypoint|args|vllm[-_]args|flags"),
        "there is no command line here: vLLM's arguments are `engine.args`",
    ),
    (
        re.compile(r"(?i)environment|env[-_]file|envs?"),
        "variables of ranks are `env`, at the top of a profile",
    ),
    (
        re.compile(r"(?i)ports|expose|network([-_]mode)?|networks"),
        "ranks use their node's network; where clients reach the model is `api.port` and `api.host`",
    ),
)
"""Keys of other tools, whole, and what there is instead. The first that fits is told."""


def _instead(key: str, value: Any) -> str:
    """What there is in place of another tool's key; and of a limit on memory below it."""
    texts = [text for keys, text in _FOREIGN if keys.fullmatch(key)][:1]
    if texts and isinstance(value, dict) and any(_LIMIT.fullmatch(str(inner)) for inner in value):
        texts.append(_BLIND)
    return "; ".join(dict.fromkeys(texts))


def _problem(details: Any) -> Problem:
    path: Path = tuple(key for key in details["loc"] if key != "[key]")
    kind = details["type"]
    if kind == "extra_forbidden":
        valid = _fields(_at(path[:-1]))
        near = difflib.get_close_matches(str(path[-1]), valid, n=1)
        if instead := _instead(str(path[-1]), details["input"]):
            return Problem(path, f"no key of a profile: {instead}")
        hint = f"did you mean {near[0]}?" if near else f"valid here: {', '.join(valid)}"
        return Problem(path, f"unknown key; {hint}")
    if kind == "missing":
        return Problem(path, "is required")
    if kind in _EXPECTED:
        return Problem(path, f"must be {_EXPECTED[kind]}, not {_shown(details['input'])}")
    if kind == "literal_error":
        if path == ("layout", "dp"):
            return Problem(path, "data parallelism is not supported yet; leave it out or write 1")
        near = difflib.get_close_matches(str(details["input"]), details["ctx"]["expected"].split("'"), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return Problem(path, f"must be {details['ctx']['expected']}, not {_shown(details['input'])}{hint}")
    if kind == "string_pattern_mismatch":
        return Problem(path, f"{_shown(details['input'])} does not fit {_describe(path)}")
    if kind in _BOUNDS:
        key, bound = _BOUNDS[kind]
        return Problem(path, f"must be {bound} {details['ctx'][key]:g}, not {_shown(details['input'])}")
    if kind in ("too_short", "string_too_short"):
        return Problem(path, "must not be empty")
    text = details["msg"].removeprefix("Value error, ")
    return Problem(path, text[:1].lower() + text[1:])


def _describe(path: Path) -> str:
    texts = {
        "id": "`org/name`",
        "revision": "a commit: 40 hex digits, 0-9 and a-f",
        "name": "a name: a-z, 0-9 and inner hyphens, at most 40 characters",
    }
    return texts.get(str(path[-1]), "a name: a-z, 0-9 and . _ -")


def _shown(value: Any) -> str:
    text = flags.word(value) if not isinstance(value, str) else f'"{value}"'
    return text if len(text) <= 60 else text[:57] + "..."


def _at(path: Path) -> type[BaseModel] | None:
    """The section of the schema that a path leads to."""
    here: Any = Profile
    for key in path:
        here = _step(here, key)
    return next((kind for kind in _kinds(here) if _is_section(kind)), None)


def _step(kind: Any, key: str | int) -> Any:
    for candidate in _kinds(kind):
        if _is_section(candidate):
            found = next((f for n, f in candidate.model_fields.items() if (f.alias or n) == key), None)
            if found is not None:
                return found.annotation
        elif typing.get_origin(candidate) in (dict, list):
            return typing.get_args(candidate)[-1]
    return None


def _kinds(kind: Any) -> list[Any]:
    if typing.get_origin(kind) in (dict, list) or _is_section(kind):
        return [kind]
    return [found for part in typing.get_args(kind) for found in _kinds(part)]


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _fields(section: type[BaseModel] | None) -> list[str]:
    return [] if section is None else [field.alias or name for name, field in section.model_fields.items()]
