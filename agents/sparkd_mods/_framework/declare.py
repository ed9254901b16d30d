"""What a mod says of itself: `MOD = Mod(...)`, beside `def apply(module)`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Need = Literal["needed", "fixed"]

NEEDED: Final = "needed"
FIXED: Final = "fixed"

ABSENT: Final = "absent"
"""The fingerprint of a function that a module does not have."""


@dataclass(frozen=True)
class Target:
    """One module of vLLM that a mod changes after it was imported."""

    module: str
    functions: Mapping[str, Mapping[str, Need]]
    """Each function that is wrapped or replaced (`Class.method`) -> its known fingerprints -> whether the
    mod is needed there. `sparkd mods fingerprint` prints the line to paste. A text that is not in the table
    is unknown: the mod refuses, unless the profile says `unknown: try`."""
    optional: bool = False
    """The module does not exist in every version, and the mod does its work without it there."""


@dataclass(frozen=True)
class Mod:
    """A change to vLLM. Its name is its module's, with hyphens.

    `versions` decides for releases only: on a development build a miss is told, and the fingerprints decide.
    """

    summary: str
    """What it achieves, in one sentence."""
    why: str
    """What goes wrong without it."""
    upstream: str
    """Where it is discussed or fixed upstream."""
    versions: str
    """The releases it was made for, as in a profile: `>=0.23,<0.34`."""
    needed: str
    """In words, for `sparkd mods list`: on which of them it is needed."""
    targets: tuple[Target, ...]
    settings: Mapping[str, tuple[str, ...]] | None = None
    """What a profile may set for it, with the allowed values."""
    changes_traits: bool = False
    """It changes what vLLM's model-info cache remembers of a class, or a graph that torch.compile caches."""
