"""Which mods a rank was told to use: the variable SPARKD_MODS, a JSON list that the plan writes."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

VARIABLE = "SPARKD_MODS"


@dataclass(frozen=True)
class Request:
    name: str
    required: bool = True
    unknown: Literal["refuse", "try"] = "refuse"
    settings: Mapping[str, str] = field(default_factory=dict)


def requests(environ: Mapping[str, str] = os.environ) -> tuple[Request, ...]:
    """Raises ValueError or TypeError for a variable that sparkd did not write."""
    return tuple(Request(**entry) for entry in json.loads(environ.get(VARIABLE) or "[]"))


def setting(mod: str, key: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """What the profile sets for a mod; None if it says nothing."""
    return next((one.settings.get(key) for one in requests(environ) if one.name == mod), None)
