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


CLOCK_HEADER: Final = "x-sparkd-clock"
"""The sender's wall clock, seconds since 1970, in every request of an agent."""
CLOCK_PATH: Final = "/agent/v1/clock"
"""Asked by an agent that takes the coordinator's certificate for out of date."""
NODE_ID: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
COORDINATOR_URI: Final = "sparkd://coordinator"
"""What the coordinator's certificate carries as a URI in its subject alternative name."""
_NODE_URI: Final = "sparkd://node/"


def node_uri(node_id: str) -> str:
    """What the certificate of a node carries as a URI in its subject alternative name."""
    return f"{_NODE_URI}{node_id}"


def node_of_uri(uri: str) -> str | None:
    """The node id in `sparkd://node/<id>`; None for anything else."""
    node = uri.removeprefix(_NODE_URI)
    return node if node != uri and NODE_ID.fullmatch(node) else None
