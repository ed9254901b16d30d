"""Where inside an argument's value vLLM takes the name of code and imports it.

Read in vLLM 0.32: module paths of connectors and offloading, custom proposers, schedulers and passes, parser
plug-ins, and Python's logging configuration, whose classes are imported too.
"""

import contextlib
import json
import re
from collections.abc import Iterator
from typing import Any, Final

_KEYS: Final = re.compile(
    r".*module_path|.*_plugin|.*_cls|cls_path|.*_class|inductor_passes|.*_pass|pylogging_config_file"
)
_DOTTED: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
"""`package.Class`. A model has a slash in its name or begins with one."""
_TAKES_DOTTED: Final = frozenset(
    {"kv-transfer-config", "ec-transfer-config", "ec-manager-config", "speculative-config"}
)
"""Their policies, tiers and proposers are imported from wherever a dotted name says."""
_ADDRESSES: Final = re.compile(r".*(ip|host|addr|address|url|endpoint)")


def code_named_in(flag: str, written: str, value: Any) -> str | None:
    """The place (`kv-transfer-config.kv_connector_module_path`) of the first name of code in a value.

    `flag` is the canonical name, `written` what the profile says, which may go on with dots into the value.
    None if there is no such name.
    """
    _, _, below = written.partition(".")
    inside = below.split(".") if below else []
    for key in reversed(inside):
        value = {key: value}
    for path, text in _leaves(value, ()):
        if any(_KEYS.fullmatch(key) for key in path) or _is_import(flag, path, text):
            return ".".join((flag, *path))
    return None


def _is_import(flag: str, path: tuple[str, ...], text: str) -> bool:
    last = path[-1] if path else ""
    if flag == "compilation-config":
        return last == "backend" and _DOTTED.fullmatch(text) is not None
    if flag not in _TAKES_DOTTED or _ADDRESSES.fullmatch(last):
        return False
    return text == "custom_class" or _DOTTED.fullmatch(text) is not None


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every value that is no map and no list, as text; vLLM reads JSON from a text as well."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        with contextlib.suppress(ValueError, RecursionError):  # then it is no JSON for vLLM either
            value = json.loads(value)
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _leaves(below, (*path, str(key).replace("-", "_")))
    elif isinstance(value, list):
        for below in value:
            yield from _leaves(below, path)
    elif value not in (None, False, ""):
        yield path, str(value)
