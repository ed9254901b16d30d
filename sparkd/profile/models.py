"""Where a profile's model may lie on a node. Whether it does is for the node's agent to see."""

from pathlib import PurePosixPath

from sparkd.errors import UsageError
from sparkd.profile.schema import ModelSource
from sparkd.records.report import NodeFacts


def model_paths(model: ModelSource, node: NodeFacts) -> tuple[str, ...]:
    """Absolute paths to try on this node, in order. Raises UsageError if the node has no model root.

    A Hub id is looked for as the Hub's cache lays it out: a snapshot folder per commit.
    """
    if model.path is not None and PurePosixPath(model.path).is_absolute():
        return (model.path,)
    if not node.model_roots:
        what = model.path or model.id
        raise UsageError(
            f"node {node.name} has no model root to look for {what} in; name one in its agent.toml"
        )
    if model.path is not None:
        return tuple(f"{root}/{model.path}" for root in node.model_roots)
    assert model.id is not None  # noqa: S101 - the schema wants path or id
    assert model.revision is not None  # noqa: S101 - the schema wants both
    folder = f"models--{model.id.replace('/', '--')}/snapshots/{model.revision}"
    return tuple(f"{root}/{folder}" for root in node.model_roots)
