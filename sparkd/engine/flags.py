"""vLLM's command line: any spelling of a flag to its one name, values to argv words and back.

vLLM 0.32 accepts `-tp 2`, `-r1`, `--node_rank=1`, `--headl`, `--compilation-config.mode 3` and `--no-x`. What
sparkd owns must be recognised in each of them, so everything is compared by canonical name: the long name
without dashes, with hyphens for underscores. Abbreviations are refused for all flags, because the next vLLM
may find them ambiguous.
"""

import difflib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from sparkd.engine.flag_table import TABLE
from sparkd.engine.owned import owned_reason

Kind = Literal["switch", "bare", "one", "json", "many", "append", "maybe", "unknown"]
"""How a flag takes its value: `--x`/`--no-x`, `--x` only, one word, one JSON word, words, repeated flag,
an optional word, or nobody knows (a plug-in's flag, or a newer vLLM's)."""

OTHER_VERSIONS: Final[dict[str, tuple[Kind, tuple[str, ...]]]] = {
    # 0.33
    "monokernel": ("switch", ()),
    "reasoning-effort-map": ("json", ()),
    "sleep-mode-backend": ("one", ()),
    "watchdog-config": ("json", ()),
    # Gone by 0.32
    "enable-bf16x3-router-gemm": ("switch", ()),
    "enable-mamba-fine-grained-prefix-cache": ("switch", ()),
    "calculate-kv-scales": ("switch", ()),
    "max-long-partial-prefills": ("one", ()),
    "max-num-partial-prefills": ("one", ()),
    "override-attention-dtype": ("one", ()),
    # Handled outside the parser of `serve`.
    "omni": ("bare", ()),
    "version": ("bare", ("-v",)),
}
"""Flags of the versions that sparkd supports which the table's version does not list."""

KNOWN: Final[dict[str, tuple[str, tuple[str, ...]]]] = {**TABLE, **OTHER_VERSIONS}
_ALIASES: Final = {alias: name for name, (_, aliases) in KNOWN.items() for alias in aliases} | {
    "-O": "optimization-level"
}
_SPELLINGS: Final = {name: name for name in KNOWN} | {
    alias.removeprefix("--"): name for alias, name in _ALIASES.items() if alias.startswith("--")
}
_INVERSES: Final = {
    inverse: name
    for name, (kind, _) in KNOWN.items()
    for prefix, other in (("enable-", "disable-"), ("disable-", "enable-"))
    if kind == "switch" and name.startswith(prefix)
    if (inverse := other + name.removeprefix(prefix)) not in KNOWN
}
"""`disable-x` for `enable-x` and the other way round: vLLM 0.33 reads it as `no-enable-x`."""
_FLAG_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")
_NEGATIVE_NUMBER: Final = re.compile(r"-\d+|-\d*\.\d+")
_SIMILAR: Final = 0.82
"""difflib ratio from which an unknown name counts as a typing error: `enforce-eagre` is 0.92 from its flag,
`max-parallel-prefills` (a fork's own) 0.80 from the nearest. Different real flags come as near as 0.98, but
those are known by name."""


@dataclass(frozen=True, slots=True)
class Flag:
    """What one spelling means. `problem` says why it may not be used and what to write instead."""

    name: str
    kind: Kind
    keys: tuple[str, ...] = ()
    """The path inside a JSON value, for dotted spellings."""
    negated: bool = False
    problem: str | None = None

    @property
    def known(self) -> bool:
        return self.kind != "unknown"


@dataclass(frozen=True, slots=True)
class Given:
    """One argument as written on a command line, `words` verbatim."""

    flag: Flag
    value: Any
    words: tuple[str, ...]


def kind_of(name: str) -> Kind:
    return KNOWN[name][0] if name in KNOWN else "unknown"  # type: ignore[return-value]


def resolve(spelling: str) -> Flag:
    """The flag that a spelling names, with leading dashes or (as in a profile) without.

    Never raises; a spelling that is not allowed has a `problem`.
    """
    if spelling.startswith("-") and not spelling.startswith("--"):
        return _resolve_short(spelling)
    text = spelling.removeprefix("--")
    if not _FLAG_NAME.fullmatch(text):
        return Flag(text, "unknown", problem="is not the name of a flag")
    head, *keys = text.split(".")
    return _resolve_long(head.replace("_", "-"), tuple(keys))


def _resolve_long(head: str, keys: tuple[str, ...]) -> Flag:
    folded = head.lower()
    negated = folded.startswith("no-") and folded not in _SPELLINGS
    bare = folded.removeprefix("no-") if negated else folded
    if bare in _SPELLINGS and head == head.lower():
        name = _SPELLINGS[bare]
        kind = kind_of(name)
        if (reason := owned_reason(name)) is not None:
            return Flag(name, kind, keys, negated, reason)
        if negated and kind != "switch":
            return Flag(name, kind, keys, negated, f"cannot be negated: --{name} is no switch")
        return Flag(name, kind, keys, negated)
    inverse = _INVERSES.get(bare)
    if inverse is not None and not negated:
        return Flag(inverse, "switch", keys, negated=True, problem=owned_reason(inverse))
    if (reason := owned_reason(bare)) is not None:
        return Flag(bare, kind_of(bare), keys, negated, reason)
    if f"-{bare}" in _ALIASES:
        name = _ALIASES[f"-{bare}"]
        return Flag(name, kind_of(name), keys, negated, owned_reason(name) or f"did you mean {name}?")
    near = nearest(bare)
    if not near:
        return Flag(head, "unknown", keys)
    owned = next((name for name in near if owned_reason(name)), None)
    if owned is not None:
        return Flag(owned, kind_of(owned), keys, negated, f"looks like {owned}: {owned_reason(owned)}")
    return Flag(near[0], kind_of(near[0]), keys, negated, f"did you mean {near[0]}?")


def _resolve_short(word: str) -> Flag:
    head = word.split("=", 1)[0].split(".", 1)[0]
    # argparse reads `-r1` as `-r 1`, and any beginning of a short flag as that flag.
    for alias in (head, head[:2]):
        if alias in _ALIASES:
            name = _ALIASES[alias]
            return Flag(name, kind_of(name), problem=owned_reason(name))
    matches = sorted({name for alias, name in _ALIASES.items() if len(head) > 1 and alias.startswith(head)})
    owned = next((name for name in matches if owned_reason(name)), None)
    if owned is not None:
        return Flag(owned, kind_of(owned), problem=f"looks like {owned}: {owned_reason(owned)}")
    hint = f"did you mean --{matches[0]}?" if matches else "write the flag's long name"
    return Flag(head.lstrip("-") or word, "unknown", problem=f"is no short flag of vLLM; {hint}")


def nearest(name: str) -> list[str]:
    """Known flags that this name is a beginning of or a typing error for, nearest first."""
    begins = [known for known in _SPELLINGS if known.startswith(name)]
    dense = name.replace("-", "")
    same = [known for known in _SPELLINGS if known.replace("-", "") == dense]
    close = difflib.get_close_matches(name, _SPELLINGS, n=3, cutoff=_SIMILAR)
    found = dict.fromkeys(same + sorted(begins, key=len) + close)
    return list(dict.fromkeys(_SPELLINGS[known] for known in found))


def value_problem(flag: Flag, value: Any) -> str | None:
    """Why vLLM could not take this value (as in a profile) for this flag; None if it can."""
    if not encodable(value):
        return "holds a character that no process argument can carry"
    if flag.kind in ("switch", "bare"):
        if not isinstance(value, bool):
            return f"is a switch: write true or false, not {_shown(value)}"
        if flag.kind == "bare" and not value:
            return "cannot be switched off; leave it out"
        return None
    if flag.known and isinstance(value, bool):
        return f"needs a value, not {_shown(value)}"
    if isinstance(value, dict):
        if flag.kind in ("one", "maybe", "append"):
            return "takes a plain value, not a map"
        return None
    if isinstance(value, list):
        if flag.kind in ("one", "maybe"):
            return "takes one value, not a list"
        return None if flag.kind == "json" else _list_problem(flag, value)
    return None


def _list_problem(flag: Flag, value: list[Any]) -> str | None:
    if not value:
        return "is an empty list; leave it out"
    for item in value:
        if isinstance(item, (bool, list)) or item is None:
            return f"holds {_shown(item)}; its items are plain values"
        text = word(item)
        # Only `--x=-1` keeps a leading dash from being read as a flag, and it takes a single value.
        if text.startswith("-") and flag.kind != "append" and len(value) > 1:
            return f"holds {_shown(item)}, which vLLM would take for a flag"
    return None


def render(flag_name: str, value: Any) -> tuple[tuple[str, ...], ...]:
    """Argv words of one argument, grouped by occurrence of the flag.

    True is `--x`, False `--no-x`, a map one JSON word, a list repeated values. Text is passed verbatim; a
    value that begins with a dash is joined with `=`, or vLLM would take it for a flag.
    """
    option = f"--{flag_name}"
    kind = kind_of(flag_name)
    if value is True:
        return ((option,),)
    if value is False:
        return ((f"--no-{flag_name}",),)
    if isinstance(value, list) and kind != "json":
        words = [word(item) for item in value]
        if kind == "append":
            return tuple(_pair(option, text) for text in words)
        return (_pair(option, words[0]),) if len(words) == 1 else ((option, *words),)
    return (_pair(option, word(value)),)


def word(value: Any) -> str:
    """One value as one argv word; text stays as it is."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


_NUMBER: Final = re.compile(r"(\d+)(\.\d+)?([kKmMgGtT]?)")


def whole_number(value: Any) -> int | None:
    """A count as vLLM reads it: `32768`, `32k` (decimal), `32K` (binary), `1.5m`. None for anything else."""
    match = _NUMBER.fullmatch(str(value).strip())
    if match is None or isinstance(value, bool):
        return None
    whole, fraction, suffix = match[1], match[2], match[3]
    power = " kmgt".find(suffix.lower() or " ")
    if suffix.islower():
        return int(float(f"{whole}{fraction or ''}") * 1000**power)
    return None if fraction else int(whole) * 1024**power


def _pair(option: str, text: str) -> tuple[str, ...]:
    return (f"{option}={text}",) if text.startswith("-") else (option, text)


def parse_words(words: Sequence[str]) -> tuple[list[Given], list[str]]:
    """Read a command line as vLLM would; returns the arguments and every problem as `word: text`.

    Values stay text, except that switches are booleans and dotted keys are read as vLLM reads them (JSON
    where possible).
    """
    found: list[Given] = []
    problems: list[str] = []
    index = 0
    while index < len(words):
        start = index
        text = words[index]
        index += 1
        if not text.startswith("-") or text in ("-", "--"):
            problems.append(f"{text}: is no flag; the model comes from the profile")
            continue
        spelling, joined = _split(text)
        flag = resolve(spelling)
        values = [] if joined is None else [joined]
        if joined is None and flag.kind not in ("switch", "bare"):
            limit = 1 if flag.keys or flag.kind in ("one", "json", "append", "maybe") else len(words)
            while index < len(words) and len(values) < limit and not _is_flag(words[index]):
                values.append(words[index])
                index += 1
        if flag.problem is not None:
            problems.append(f"{text}: {flag.problem}")
            continue
        value, problem = _value(flag, values)
        if problem is not None:
            problems.append(f"{text}: {problem}")
            continue
        found.append(Given(flag, value, tuple(words[start:index])))
    return found, problems


def _split(text: str) -> tuple[str, str | None]:
    if text.startswith("--"):
        head, equals, rest = text.partition("=")
        return head, rest if equals else None
    head = text.split("=", 1)[0]
    if head in _ALIASES:
        return head, text[len(head) + 1 :] if "=" in text else None
    if text[:2] in _ALIASES and "." not in head:
        return text[:2], text[2:].removeprefix("=")
    if "." in head and head.split(".", 1)[0] in _ALIASES:
        # `-cc.mode 3`: the long name stands for the alias, the keys are kept.
        alias, keys = head.split(".", 1)
        return f"--{_ALIASES[alias]}.{keys}", text[len(head) + 1 :] if "=" in text else None
    return text, None


def _is_flag(text: str) -> bool:
    return text.startswith("-") and text != "-" and not _NEGATIVE_NUMBER.fullmatch(text)


def _value(flag: Flag, values: list[str]) -> tuple[Any, str | None]:
    if not encodable(values):
        return None, "holds a character that no process argument can carry"
    if flag.kind in ("switch", "bare"):
        return not flag.negated, "takes no value" if values else None
    if flag.keys:
        if not values:
            return None, "needs a value"
        if flag.kind not in ("json", "unknown"):
            return None, "takes a plain value, so no dotted keys"
        return _read(values[0]), None
    if not values:
        return (True, None) if flag.kind == "unknown" else (None, "needs a value")
    if flag.kind in ("many", "append") or len(values) > 1:
        return values, _list_problem(flag, list(values))
    return values[0], None


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def encodable(value: Any) -> bool:
    """Whether execve can carry it and JSON can store it: no NUL, no lone surrogate, at any depth."""
    if isinstance(value, dict):
        return all(encodable(key) and encodable(item) for key, item in value.items())
    if isinstance(value, list):
        return all(encodable(item) for item in value)
    if not isinstance(value, str):
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in value


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 40 else text[:37] + "..."
