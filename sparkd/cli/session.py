"""What every verb that talks to a coordinator begins with."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sparkd.client import Client
from sparkd.contact import Contact, find_coordinator
from sparkd.errors import CoordinatorUnreachable, NotFound, Unauthorized
from sparkd.local_set import last_status, read_local_set
from sparkd.paths import find_paths
from sparkd.records.status import DeploymentStatus, Status


@dataclass(frozen=True, slots=True)
class Session:
    contact: Contact
    client: Client

    def deployment(self, name: str) -> DeploymentStatus:
        """As it is now, or as it was left by a local set that another terminal has ended."""
        try:
            return self.client.deployment(name)
        except CoordinatorUnreachable:
            left = self.left()
            if left is None:
                raise
            return pick(left, name)

    def left(self) -> Status | None:
        """What a local set knew when it was ended; None while it lives, and for one that merely died."""
        return last_status(find_paths()) if self.contact.is_local else None


@contextmanager
def connect(given: str | None = None) -> Iterator[Session]:
    """To the coordinator that `--coordinator` (`given`) or the rules of the design name.

    Errors of reaching or entering it leave with what a person can do about them.
    """
    contact = find_coordinator(given)
    try:
        yield Session(contact, Client(contact.url, contact.token(), authority_file=contact.authority_file))
    except Unauthorized as error:
        hint = f"the token came from {contact.token_file}; SPARKD_TOKEN_FILE names another file"
        raise Unauthorized(f"{error}; {hint}") from error
    except CoordinatorUnreachable as error:
        raise CoordinatorUnreachable(f"{error}; {_hint(contact)}") from error


def _hint(contact: Contact) -> str:
    if not contact.is_guess:
        return f"that address came from {contact.how}"
    if died := read_local_set(find_paths()):
        return f"the local set's coordinator died; `sparkd up PROFILE --local {died.n}` starts it again"
    return "`sparkd up PROFILE --local N` starts one here, --coordinator or SPARKD_COORDINATOR names another"


def pick(status: Status, name: str) -> DeploymentStatus:
    """Raises NotFound, naming the deployments there are."""
    for one in status.deployments:
        if one.name == name:
            return one
    known = ", ".join(one.name for one in status.deployments) or "none"
    raise NotFound(f"no deployment {name}; there are: {known}")
