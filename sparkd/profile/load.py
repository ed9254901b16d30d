"""A profile file: read, and checked together with each of its variants."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from sparkd.errors import NotFound, ProfileError
from sparkd.profile.check import Problem, check, dotted
from sparkd.profile.layers import Layer, Path, canonical, merge_layers
from sparkd.profile.schema import Profile, Variant
from sparkd.profile.yaml_tree import MAX_BYTES, read_yaml


@dataclass(frozen=True, slots=True)
class Source:
    """A valid profile file: its own layer, and one layer for each variant."""

    name: str
    where: str
    base: Layer
    variants: dict[str, Layer]
    profile: Profile


def load_source(path: FilePath) -> Source:
    """Read and check one file. Raises NotFound, or ProfileError with every problem of the file."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise NotFound(f"profile {path}: {error.strerror}") from error
    return parse_source(content, str(path))


def parse_source(content: str | bytes, where: str) -> Source:
    """Check one profile. Raises ProfileError with every problem, each as `where:line: key: text`."""
    tree = read_yaml(content)
    found = [_line(where, problem.line, problem.path, problem.text) for problem in tree.problems]
    data = tree.data
    if not isinstance(data, dict):
        raise ProfileError(found or [f"{where}:1: a profile is a map, such as `schema: sparkd/v1`"])

    base = Layer("profile", "profile", {key: data[key] for key in data if key != "variants"}, tree.lines)
    base, named = canonical(base)
    found += located([base], [Problem(*problem) for problem in named], where)
    profile, own = check(_with_variants(data, base))
    found += located([base], own, where)

    variants: dict[str, Layer] = {}
    raw = data.get("variants")
    for name, body in raw.items() if isinstance(raw, dict) else ():
        if not isinstance(body, dict):
            continue
        lines = {path[2:]: line for path, line in tree.lines.items() if path[:2] == ("variants", name)}
        # `when` and misspelt sections were checked as part of the file.
        sections = {
            key: value for key, value in body.items() if key in Variant.model_fields and key != "when"
        }
        layer, named = canonical(Layer("variant", f"variant {name}", sections, lines))
        variants[name] = layer
        found += located([layer], [Problem(*problem) for problem in named], where, ("variants", name))
        _, problems = check(merge_layers([base, layer])[0])
        mine = [problem for problem in problems if problem not in own and layer.holds(problem.path[:1])]
        found += located([layer], mine, where, ("variants", name))
    if found or profile is None:
        raise ProfileError(sorted(dict.fromkeys(found), key=_by_line))
    return Source(profile.name, where, base, variants, profile)


def located(layers: Sequence[Layer], problems: list[Problem], where: str, below: Path = ()) -> list[str]:
    """Problems as lines for people: `file:line: key: text`, or the words of the command line that caused it.

    `layers` are bottom first: the top one that holds a path is to blame for it. `below` is where a layer's
    paths hang in the file.
    """
    texts = []
    for problem in problems:
        layer = next((layer for layer in reversed(layers) if layer.holds(problem.path)), layers[0])
        if layer.lines or layer.origin == "profile":
            texts.append(_line(where, _nearest_line(layer, problem.path), below + problem.path, problem.text))
        else:
            texts.append(f"{layer.label}: {dotted(problem.path)}: {problem.text}")
    return texts


def _with_variants(data: dict[str, Any], base: Layer) -> dict[str, Any]:
    """The profile with its variants, as the schema sees it; arguments of variants are checked apart."""
    merged = merge_layers([base])[0]
    return merged | {"variants": data["variants"]} if data.get("variants") is not None else merged


def _nearest_line(layer: Layer, path: Path) -> int:
    for length in range(len(path), 0, -1):
        if path[:length] in layer.lines:
            return layer.lines[path[:length]]
    return 1


def _line(where: str, line: int, path: Path, text: str) -> str:
    return f"{where}:{line}: {dotted(path)}: {text}" if path else f"{where}:{line}: {text}"


def _by_line(text: str) -> tuple[int, str]:
    number = text.split(": ", 1)[0].rsplit(":", 1)[-1]
    return (int(number) if number.isdigit() else 0, text)
