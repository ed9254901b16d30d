"""Where the coordinator is, how that was found, and the token for it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sparkd.errors import Unauthorized
from sparkd.local_set import live_local_set
from sparkd.paths import Paths, find_paths
from sparkd.settings import read_settings

DEFAULT_URL = "http://127.0.0.1:7070"


@dataclass(frozen=True, slots=True)
class Contact:
    url: str
    how: str
    """In words for people: `--coordinator`, `local set`, …"""
    token_file: Path
    is_local: bool = False
    """It is the local set of this user."""
    is_guess: bool = False
    """Nobody named it, and no local set lives."""
    authority_file: Path | None = None
    """By whose certificate an https URL is believed; None: by what the system trusts, and its host name."""

    def token(self) -> str | None:
        """None where there is no file: the coordinator then says that it wants one.

        Raises Unauthorized for a file that others may read.
        """
        try:
            if self.token_file.stat().st_mode & 0o077:
                raise Unauthorized(
                    f"{self.token_file} may be read by others; run `chmod 600 {self.token_file}`, and mint "
                    "a new token if others use this machine"
                )
            return self.token_file.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return None
        except PermissionError as error:
            raise Unauthorized(f"you may not read {self.token_file}; ask its owner for a token") from error


def find_coordinator(
    given: str | None = None, env: Mapping[str, str] | None = None, paths: Paths | None = None
) -> Contact:
    """By `--coordinator` (`given`), `SPARKD_COORDINATOR`, the configuration, a live local set, the default.

    The token comes from `SPARKD_TOKEN_FILE`, from the local set if that is where we go, from the
    configuration, or from `token` in the state folder, where `sparkd coordinator run` puts it. The authority
    comes from `SPARKD_AUTHORITY_FILE` or the configuration.
    Raises UsageError for a configuration that cannot be read.
    """
    env = os.environ if env is None else env
    paths = paths or find_paths(env)
    settings = read_settings(paths.config)
    local = live_local_set(paths)
    named = (
        (given, "--coordinator"),
        (env.get("SPARKD_COORDINATOR"), "SPARKD_COORDINATOR"),
        (settings.coordinator, settings.source or ""),
        (local.url if local else None, "local set"),
    )
    url, how = next(((url, how) for url, how in named if url), (DEFAULT_URL, "default"))
    url = url.rstrip("/") if "://" in url else f"http://{url.rstrip('/')}"
    is_local = local is not None and url == local.url
    authority = env.get("SPARKD_AUTHORITY_FILE") or settings.authority_file
    return Contact(
        url,
        how,
        _token_file(env, paths, settings.token_file, is_local),
        is_local,
        is_guess=how == "default",
        authority_file=Path(authority) if authority else None,
    )


def _token_file(env: Mapping[str, str], paths: Paths, configured: str | None, is_local: bool) -> Path:
    if given := env.get("SPARKD_TOKEN_FILE"):
        return Path(given)
    if is_local:
        return paths.local / "token"
    return Path(configured) if configured else paths.state / "token"
