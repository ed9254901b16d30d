"""`sparkd init`: this machine becomes the coordinator's. Each step looks first, so it can be asked for again.

    user ─> program ─> authority ─> token ─> unit ─> start ─> verify

Nothing here listens for other machines before the authority exists.
"""

import grp
import os
import pwd
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sparkd.client import Client
from sparkd.coordinator.tokens import mint_token, read_tokens, revoke_token
from sparkd.enrol.authority import make_authority
from sparkd.enrol.bundle import build_bundle
from sparkd.enrol.enrolment import State
from sparkd.enrol.host import Host, OnNode
from sparkd.enrol.program import program_files, visible_python
from sparkd.errors import EnrolmentFailed, SparkdError
from sparkd.private_file import write_private
from sparkd.records.defaults import DEFAULTS
from sparkd.unit_files import COORDINATOR, unit_file

USER: Final = "sparkd"
BASE: Final = "opt/sparkd-coordinator"
STATE: Final = "/var/lib/sparkd/coordinator"
REST: Final = "127.0.0.1:7070"
REST_SOCKET: Final = "/run/sparkd/coordinator/rest.sock"
_UNIT_PLACE: Final = f"etc/systemd/system/{COORDINATOR}"
_DROP_IN: Final = f"{_UNIT_PLACE}.d/10-init.conf"

Tell = Callable[[str, State, str], None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """`agents`: HOST:PORT where agents meet us. `caller`: who gets a token, with the file for it."""

    agents: str
    caller: str
    token_file: Path
    rest: str = REST
    state: Path = Path(STATE)
    owner: str | None = USER
    """Whom the service runs as; None leaves users alone, as tests do."""


def cannot(*, uid: int, has_systemd: bool) -> str:
    """Why there can be no service here, and what can be had instead; nothing when there can."""
    instead = "`sparkd init --no-service` makes what a coordinator in the foreground needs"
    if not has_systemd:
        return f"no systemd runs here, so the coordinator cannot be a service; {instead}"
    if uid != 0:
        # sudo does not look where `uv tool` and pipx put programs.
        program = shutil.which(sys.argv[0]) or "sparkd"
        return f"only root can make the coordinator a service: `sudo {program} init`; {instead}"
    return ""


def without_service(folder: Path, token_file: Path, caller: str) -> None:
    """What can be had without root and systemd: authority and token, for a coordinator in the foreground.

    Raises SparkdError, OSError.
    """
    make_authority(folder, time.time())
    if not token_file.exists():
        name = f"{caller}, by init"
        if any(one.name == name for one in read_tokens(folder)):
            revoke_token(folder, name)
        write_private(token_file, mint_token(folder, name, "admin") + "\n")


class Init:
    """Carries out the steps through `host`, this machine. Stops at the first that fails: the rest need it."""

    def __init__(self, host: Host, wanted: Wanted, tell: Tell) -> None:
        self._host = host
        self._wanted = wanted
        self._tell = tell
        self._changed = False

    def run(self) -> None:
        """Raises SparkdError with what a person can do; the same call again goes on there."""
        with self._host.open() as here:
            steps: tuple[tuple[str, Callable[[], tuple[bool, str]]], ...] = (
                ("user", self._user),
                ("program", lambda: self._program(here)),
                ("authority", self._authority),
                ("token", self._token),
                ("unit", lambda: self._unit(here)),
                ("start", lambda: self._start(here)),
                ("verify", self._verify),
            )
            for name, step in steps:
                try:
                    changed, words = step()
                except OSError as error:
                    raise EnrolmentFailed(f"{name}: {error}") from error
                except SparkdError as error:
                    self._tell(name, "failed", str(error))
                    raise
                # A coordinator that runs takes a new token by itself.
                self._changed |= changed and name != "token"
                self._tell(name, "done" if changed else "same", words)

    def _user(self) -> tuple[bool, str]:
        owner, caller = self._wanted.owner, self._wanted.caller
        if owner is None:
            return False, "left alone"
        made = []
        try:
            pwd.getpwnam(owner)
        except KeyError:
            _run("useradd", "--system", "--user-group", "--no-create-home", "--home-dir", "/var/lib/sparkd",
                 "--shell", "/usr/sbin/nologin", owner)  # fmt: skip
            made.append(f"user and group {owner}")
        if caller != "root" and caller not in grp.getgrnam(owner).gr_mem:
            _run("usermod", "--append", "--groups", owner, caller)
            made.append(f"{caller} in group {owner} (from the next login on)")
        return bool(made), ", ".join(made) or f"user {owner}"

    def _program(self, here: OnNode) -> tuple[bool, str]:
        bundle = build_bundle(program_files(), (), visible_python(), "sparkd", "sparkd.cli")
        staged = here.ask("stage", bundle.blob, base=BASE, folder=bundle.folder)["changed"]
        linked = here.ask("link", base=BASE, folder=bundle.folder)["changed"]
        return staged or linked, f"/{BASE}/{bundle.folder}, {bundle.size / 1e6:.0f} MB"

    def _authority(self) -> tuple[bool, str]:
        folder = self._wanted.state
        fresh = not (folder / "ca.key").exists()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._wanted.owner is not None:
            # Whatever root's umask is: the owner must get through.
            folder.parent.chmod(0o755)
        make_authority(folder, time.time())
        self._give_to_owner(folder)
        return fresh, f"in {folder}; `sparkd coordinator backup FILE` keeps it safe"

    def _token(self) -> tuple[bool, str]:
        """An admin's, for the caller. One that is lost is made anew; the old one then counts no more."""
        folder, file, name = self._wanted.state, self._wanted.token_file, f"{self._wanted.caller}, by init"
        known = any(one.name == name for one in read_tokens(folder))
        if known and file.exists():
            return False, str(file)
        if known:
            revoke_token(folder, name)
        _write_for(file, mint_token(folder, name, "admin") + "\n", self._wanted.caller)
        self._give_to_owner(folder)
        return True, f"{file} (scope admin)"

    def _give_to_owner(self, folder: Path) -> None:
        if self._wanted.owner is not None:
            for place in (folder, *folder.rglob("*")):
                shutil.chown(place, self._wanted.owner, self._wanted.owner)

    def _unit(self, here: OnNode) -> tuple[bool, str]:
        text = unit_file(COORDINATOR).read_text(encoding="utf-8")
        changed = here.ask("write", name=_UNIT_PLACE, text=text)["changed"]
        changed |= here.ask("write", name=_DROP_IN, text=drop_in(self._wanted))["changed"]
        return changed, f"/{_UNIT_PLACE}, agents meet it at {self._wanted.agents}"

    def _start(self, here: OnNode) -> tuple[bool, str]:
        here.ask("start", unit=COORDINATOR, restart=self._changed)
        return self._changed, COORDINATOR

    def _verify(self) -> tuple[bool, str]:
        url = f"http://{self._wanted.rest}"
        client = Client(url, self._wanted.token_file.read_text(encoding="utf-8").strip())
        end = time.monotonic() + DEFAULTS.enrol_verify_s
        while True:
            try:
                client.membership()
            except SparkdError as error:
                if time.monotonic() > end:
                    log = f"`journalctl --unit {COORDINATOR}` shows why"
                    raise EnrolmentFailed(f"the coordinator does not answer: {error}; {log}") from error
                time.sleep(DEFAULTS.client_poll_s)
            else:
                return True, f"the coordinator answers at {url}"


def known_address(root: Path = Path("/")) -> str | None:
    """What an earlier `init` chose: agents know that address, so it changes only when a person says so."""
    try:
        text = (root / _DROP_IN).read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r" --agents (\S+):\d+ ", text)
    return found[1] if found else None


def drop_in(wanted: Wanted) -> str:
    """Where the program lies and which addresses it has; systemd takes `%` and `$` for its own."""
    words = [f"/{BASE}/current/bin/sparkd", "coordinator", "run", "--state-dir", str(wanted.state)]
    words += ["--rest", wanted.rest, "--agents", wanted.agents, "--rest-socket", REST_SOCKET]
    line = " ".join(_quoted(word) for word in words)
    return f"# Written by `sparkd init`.\n[Service]\nExecStart=\nExecStart={line}\n"


def _quoted(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if escaped != word or " " in word else word


def _write_for(file: Path, text: str, user: str) -> None:
    """A private file in somebody's home: its new folders and the file are that person's."""
    missing = [folder for folder in (file.parent, *file.parents) if not folder.exists()]
    write_private(file, text)
    if os.geteuid() == 0:
        for place in (*missing, file):
            shutil.chown(place, user, pwd.getpwnam(user).pw_gid)


def _run(*argv: str) -> Any:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EnrolmentFailed(f"{argv[0]} failed: {done.stderr.strip() or done.returncode}")
