"""Names that carry meaning on every machine: deployments and ranks."""

import re
from typing import Final, NamedTuple

DEPLOYMENT_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
_RANK_NAME: Final = re.compile(r"sparkd-(?P<deployment>[a-z0-9-]+)-g(?P<generation>\d+)-r(?P<rank>\d+)")


class RankName(NamedTuple):
    deployment: str
    generation: int
    rank: int

    def __str__(self) -> str:
        return f"sparkd-{self.deployment}-g{self.generation}-r{self.rank}"


def parse_rank_name(text: str) -> RankName | None:
    """Read `sparkd-<deployment>-g<generation>-r<rank>`; None for anything else."""
    match = _RANK_NAME.fullmatch(text)
    if match is None:
        return None
    return RankName(match["deployment"], int(match["generation"]), int(match["rank"]))


def is_deployment_name(text: str) -> bool:
    """Whether the text may name a deployment: up to 40 of a-z, 0-9 and inner hyphens."""
    return DEPLOYMENT_NAME.fullmatch(text) is not None
