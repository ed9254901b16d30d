from typing import Annotated

import typer

from sparkd.cli.output import CoordinatorUrl

EXAMPLES = (
    "sparkd key tiny",
    'curl -H "Authorization: Bearer $(sparkd key tiny)" http://spark-1:8100/v1/models',
)


def key(
    name: Annotated[str, typer.Argument(help="The deployment.")], coordinator: CoordinatorUrl = None
) -> None:
    """Print the API key of a deployment."""
    from pathlib import Path

    from sparkd.cli.output import show
    from sparkd.cli.session import connect
    from sparkd.errors import NotFound

    with connect(coordinator) as session:
        deployment = session.client.deployment(name)
    if deployment.endpoint is None:
        raise NotFound(f"{name} is {deployment.phase}: it has no endpoint, and thus no key")
    if deployment.endpoint.key_file is None:
        raise NotFound(f"{name} needs no key at {deployment.endpoint.base_url}")
    file = Path(deployment.endpoint.key_file)
    try:
        show([file.read_text(encoding="utf-8").strip()])
    except OSError as error:
        raise NotFound(
            f"the key of {name} lies in {file}, which cannot be read here: {error.strerror}"
        ) from error
