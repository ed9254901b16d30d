"""Layers of a profile laid over each other: maps merge, lists replace, null removes."""

from dataclasses import dataclass, field
from typing import Any

from sparkd.engine import flags

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Layer:
    """One source of values. `origin` is the plan's word, `label` says which one (`variant nvfp4-kv`)."""

    origin: str
    label: str
    data: dict[str, Any]
    lines: dict[Path, int] = field(default_factory=dict)
    """1-based lines of a file; empty for values from the command line."""

    def holds(self, path: Path) -> bool:
        """Whether this layer says anything about the path or something inside it."""
        here: Any = self.data
        for key in path:
            inside = (
                here if isinstance(here, dict) else dict(enumerate(here if isinstance(here, list) else ()))
            )
            if key not in inside:
                return False
            here = inside[key]
        return True


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` laid over `base`; neither is changed. The result holds no null outside of lists."""
    merged = {key: _without_nulls(value) for key, value in base.items() if value is not None}
    for key, value in over.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            below = merged.get(key)
            merged[key] = merge(below if isinstance(below, dict) else {}, value)
        else:
            merged[key] = value
    return merged


def _without_nulls(value: Any) -> Any:
    return merge(value, {}) if isinstance(value, dict) else value


def merge_layers(layers: list[Layer]) -> tuple[dict[str, Any], dict[tuple[str, ...], str]]:
    """The merged data and, for every leaf of it, the label of the layer that it comes from."""
    data: dict[str, Any] = {}
    origins: dict[tuple[str, ...], str] = {}
    for layer in layers:
        data = merge(data, layer.data)
        before = origins
        said = leaves(merge({}, layer.data))
        origins = {
            path: layer.label if path in said else before.get(path, layer.label) for path in leaves(data)
        }
    return data, origins


def leaves(data: dict[str, Any], path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Every value that is no map (or an empty one), by its path."""
    found: dict[tuple[str, ...], Any] = {}
    for key, value in data.items():
        here = (*path, key)
        if isinstance(value, dict) and value:
            found.update(leaves(value, here))
        else:
            found[here] = value
    return found


def canonical(layer: Layer) -> tuple[Layer, list[tuple[Path, str]]]:
    """The layer with its engine arguments under their canonical names, so that layers can be compared.

    Also every problem with those names, by path. Arguments with a problem are left out.
    """
    engine = layer.data.get("engine")
    args = engine.get("args") if isinstance(engine, dict) else None
    if not isinstance(engine, dict) or not isinstance(args, dict):
        return layer, []
    problems: list[tuple[Path, str]] = []
    named: dict[str, Any] = {}
    lines = dict(layer.lines)
    for spelling, value in args.items():
        path: Path = ("engine", "args", spelling)
        flag = flags.resolve(spelling)
        problem = flag.problem
        if problem is None and spelling.startswith("-"):
            problem = f"write {flag.name}, without dashes"
        elif problem is None and flag.negated:
            problem = f"write `{flag.name}: false`"
        elif problem is None and flag.keys and flag.kind not in ("json", "unknown"):
            problem = "takes a plain value, so no dotted keys"
        if problem is not None:
            problems.append((path, problem))
            continue
        for key in reversed(flag.keys):
            value = {key: value}  # noqa: PLW2901 - a dotted key is a map written short
        if flag.name in named:
            below = named[flag.name]
            if not flag.keys or not isinstance(below, dict):
                problems.append((path, f"{flag.name} is given twice, in two spellings"))
                continue
            value = _combine(below, value)  # noqa: PLW2901
        named[flag.name] = value
        for known, line in layer.lines.items():
            if known[:3] == path:
                lines.setdefault(("engine", "args", flag.name, *flag.keys, *known[3:]), line)
                lines.setdefault(("engine", "args", flag.name), line)
    data = {**layer.data, "engine": {**engine, "args": named}}
    return Layer(layer.origin, layer.label, data, lines), problems


def _combine(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Like `merge`, but a null stays, to remove something from the layer below."""
    both = dict(base)
    for key, value in over.items():
        below = both.get(key)
        both[key] = _combine(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return both
