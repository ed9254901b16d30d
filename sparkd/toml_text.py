"""TOML as we write it: tables of booleans, numbers, texts and lists of them."""

import json
import re
from collections.abc import Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(document: Mapping[str, Mapping[str, Any]]) -> str:
    """A document of tables, each of which may hold tables."""
    return "\n".join(_table((name,), table) for name, table in document.items() if table)


def _table(path: tuple[str, ...], table: Mapping[str, Any]) -> str:
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    below = [_table((*path, key), value) for key, value in table.items() if isinstance(value, Mapping)]
    lines = [f"[{'.'.join(map(_key, path))}]", *(f"{_key(k)} = {toml_value(v)}" for k, v in plain.items())]
    own = ["\n".join(lines) + "\n"] if plain or not below else []
    return "\n".join([*own, *below])


def toml_value(value: object) -> str:
    """A JSON string is a TOML string once DEL is escaped too."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(text: str) -> str:
    return text if _BARE.fullmatch(text) else toml_value(text)
