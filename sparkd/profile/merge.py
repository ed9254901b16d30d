"""From a profile file to an intent: variants, `--set` and the words after `--`, each laid over the last."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sparkd.engine import flags
from sparkd.errors import ProfileError, UsageError
from sparkd.profile.check import Problem, check
from sparkd.profile.layers import Layer, canonical, leaves, merge_layers
from sparkd.profile.load import Source, located
from sparkd.profile.schema import Profile
from sparkd.profile.yaml_tree import read_yaml
from sparkd.records.intent import Intent

_FIXED: Final = ("schema", "name", "verified", "variants")
"""What `--set` may not touch: it would be another profile."""


@dataclass(frozen=True, slots=True)
class Resolved:
    profile: Profile
    intent: Intent


def resolve(
    source: Source,
    *,
    variants: Sequence[str] = (),
    sets: Sequence[str] = (),
    engine_args: Sequence[str] = (),
    nodes: Sequence[str] = (),
    image: str | None = None,
) -> Resolved:
    """What a person asked for, complete: defaults filled in, every value with its origin.

    Later wins: the profile, its variants in the order given, `--set`, the words after `--`. Raises
    ProfileError with every problem, UsageError for a variant that does not exist or does not fit.
    """
    layers = [source.base]
    problems: list[str] = []
    for name in variants:
        if name not in source.variants:
            raise UsageError(_no_such_variant(source, name))
        layers.append(source.variants[name])
    for text in sets:
        layer, found = _set_layer(text)
        problems += found
        if layer is not None:
            layers.append(layer)
    argument_layers, found = _argument_layers(engine_args)
    problems += found
    layers += argument_layers

    data, origins = merge_layers(layers)
    profile, wrong = check(data)
    problems += located(layers, wrong, source.where)
    if problems or profile is None:
        raise ProfileError(list(dict.fromkeys(problems)))
    for name in variants:
        wanted = source.profile.variants[name].when.nodes
        if wanted is not None and wanted != profile.layout.ranks:
            raise UsageError(
                f"variant {name} is for {wanted} nodes; this layout has {profile.layout.ranks} "
                f"(tp {profile.layout.tp} x pp {profile.layout.pp})"
            )

    plain = profile.model_dump(mode="json", exclude={"variants", "verified"})
    intent = Intent(
        profile_name=source.name,
        profile=plain,
        variants=tuple(variants),
        sets=tuple(sets),
        nodes=tuple(nodes),
        image=image,
        engine_args=tuple(engine_args),
        verified=tuple(profile.verified),
        origins={".".join(path): origins.get(path, "default") for path in leaves(plain)},
    )
    return Resolved(profile, intent)


def _no_such_variant(source: Source, name: str) -> str:
    near = difflib.get_close_matches(name, source.variants, n=1)
    if near:
        return f"profile {source.name} has no variant {name}; did you mean {near[0]}?"
    known = ", ".join(source.variants) or "none"
    return f"profile {source.name} has no variant {name}; it has: {known}"


def _set_layer(text: str) -> tuple[Layer | None, list[str]]:
    label = f"--set {text}"
    key, equals, value = text.partition("=")
    parts = key.split(".")
    if not equals or not all(parts):
        return None, [f"{label}: write KEY=VALUE, such as layout.tp=2"]
    if parts[0] in _FIXED:
        return None, [f"{label}: {parts[0]} cannot be set; write another profile"]
    tree = read_yaml(value)
    if tree.problems:
        return None, [f"{label}: {problem.text}" for problem in tree.problems]
    data: Any = tree.data
    for part in reversed(parts):
        data = {part: data}
    layer, named = canonical(Layer("set", label, data))
    return layer, located([layer], [Problem(*problem) for problem in named], label)


def _argument_layers(words: Sequence[str]) -> tuple[list[Layer], list[str]]:
    """One layer per argument, so that a problem names the words it comes from."""
    given, problems = flags.parse_words(words)
    layers: list[Layer] = []
    plain: set[str] = set()
    values: dict[str, list[str]] = {}
    for argument in given:
        flag, value = argument.flag, argument.value
        label = f"-- {' '.join(argument.words)}"
        if flag.kind == "append":
            values[flag.name] = [*values.get(flag.name, []), *value]
            value = values[flag.name]
        elif not flag.keys and flag.name in plain:
            problems.append(f"{label}: {flag.name} is given twice")
        if not flag.keys:
            plain.add(flag.name)
        for key in reversed(flag.keys):
            value = {key: value}
        layers.append(Layer("argument", label, {"engine": {"args": {flag.name: value}}}))
    return layers, problems
