"""Where profiles are found: a path, or a name in the user's, the machine's and the built-in profiles."""

import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from sparkd.errors import NotFound
from sparkd.profile.load import Source, load_source

MACHINE_PROFILES = Path("/etc/sparkd/profiles")


def builtin_profiles() -> Path:
    """The profiles that come with sparkd: in the package, or beside it in a checkout."""
    package = Path(__file__).parent / "builtin"
    return package if package.is_dir() else Path(__file__).parents[2] / "profiles"


def profile_folders(environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """The folders that a name is looked up in; the first that has it wins.

    The user's and the machine's, or SPARKD_CONFIG_DIR's instead of both; then the built-in ones.
    """
    if own := environ.get("SPARKD_CONFIG_DIR"):
        return (Path(own).absolute() / "profiles", builtin_profiles())
    config = environ.get("XDG_CONFIG_HOME", "")
    if not config.startswith("/"):  # as the specification has it: a relative value counts as unset
        config = f"{environ.get('HOME') or '/root'}/.config"
    return (Path(config) / "sparkd" / "profiles", MACHINE_PROFILES, builtin_profiles())


def find_profile(profile: str, folders: Sequence[Path]) -> Path:
    """The file that PROFILE means: a path (it has `/` or ends in `.yaml`), or a name looked up in `folders`.

    Raises NotFound with near names and the places that were looked at.
    """
    if "/" in profile or profile.endswith(".yaml"):
        path = Path(profile)
        if not path.is_file():
            raise NotFound(f"there is no profile file {profile}")
        return path
    for folder in folders:
        path = folder / f"{profile}.yaml"
        if path.is_file():
            return path
    near = difflib.get_close_matches(profile, all_profiles(folders), n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    looked = ", ".join(str(folder) for folder in folders)
    raise NotFound(f"there is no profile {profile}{hint} (looked in {looked})")


def all_profiles(folders: Sequence[Path]) -> dict[str, Path]:
    """Every name that can be looked up, with its file, sorted by name."""
    found: dict[str, Path] = {}
    for folder in reversed(folders):
        if folder.is_dir():
            found.update({path.stem: path for path in folder.glob("*.yaml")})
    return dict(sorted(found.items()))


def load_profile(profile: str, environ: Mapping[str, str] = os.environ) -> Source:
    """Find and read PROFILE. Raises NotFound or ProfileError."""
    return load_source(find_profile(profile, profile_folders(environ)))
