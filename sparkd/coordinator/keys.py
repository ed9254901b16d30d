"""API keys of deployments: one 0600 file each, never in the database, a log or an answer."""

import secrets
from dataclasses import replace
from pathlib import Path

from sparkd.gang.record import GangRecord
from sparkd.private_file import write_private

VARIABLE = "VLLM_API_KEY"


class KeyRing:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, deployment: str) -> Path:
        return self._folder / deployment

    def get(self, deployment: str) -> str | None:
        try:
            return self.path(deployment).read_text().strip()
        except FileNotFoundError:
            return None

    def make(self, deployment: str) -> str:
        """The deployment's key; minted at the first call."""
        known = self.get(deployment)
        if known is not None:
            return known
        key = f"sk-{secrets.token_urlsafe(32)}"
        write_private(self.path(deployment), key + "\n")
        return key

    def complete(self, record: GangRecord) -> GangRecord:
        """Give a record from the database its secrets back: they were left out when it was stored."""
        key = self.get(record.name)
        if key is None or not record.specs or not needs_key(record):
            return record
        head = replace(record.specs[0], secrets={VARIABLE: key})
        return replace(record, specs=(head, *record.specs[1:]))


def needs_key(record: GangRecord) -> bool:
    """`api.key: generate`, the default, applies off loopback."""
    wish = record.intent.profile.get("api", {}).get("key", "generate")
    head = record.specs[0].probe if record.specs else None
    loopback = head is not None and head.api.host in ("127.0.0.1", "::1", "localhost")
    return bool(wish == "generate" and not loopback)
