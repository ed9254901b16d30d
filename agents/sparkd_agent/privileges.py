"""What this agent may do on its node, and in plain words what it cannot do, each with the remedy."""

import pwd
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sparkd.errors import UsageError
from sparkd_agent.account import Account, find_account
from sparkd_agent.config import RUNTIMES, AgentConfig


@dataclass(frozen=True, slots=True)
class Capability:
    name: str
    bit: int
    """Of include/uapi/linux/capability.h."""
    lost: str
    """What an agent without it cannot do."""


CAPABILITIES: Final = (
    Capability("dac_override", 1, "read and remove files of other users, such as those of their ranks"),
    Capability("kill", 5, "end processes of other users: a rank of another user stays"),
    Capability("ipc_lock", 14, "lock its memory: it may stand still while the node runs short of memory"),
    Capability("sys_ptrace", 19, "see what processes of other users map, hold open and wait for"),
    Capability("sys_resource", 24, "take itself out of the kernel's choice when memory has run out"),
    Capability("syslog", 34, "read the kernel's log, where the GPU's driver says what went wrong"),
)
"""As `sparkd-agent.service` keeps them."""

_BECOME: Final = 1 << 6 | 1 << 7
"""CAP_SETGID and CAP_SETUID."""
BY_THE_UNIT: Final = "run it as root, by sparkd-agent.service"
GRANT_IT: Final = "sparkd-agent.service asks for it, the machine or its container must grant it"


@dataclass(frozen=True, slots=True)
class Privileges:
    root: bool
    held: frozenset[str]
    """Names of `CAPABILITIES`."""
    systemd: bool
    """Whether PID 1 of this node is systemd."""
    becomes_others: bool = True
    """Whether a process of it can become another user: `sparkd-agent.service` takes that away."""
    lingers: bool = True
    """Whether the agent's user stays logged in for systemd-logind; False only where that matters."""

    def in_words(self) -> tuple[str, ...]:
        return (("root",) if self.root else ()) + tuple(
            one.name for one in CAPABILITIES if one.name in self.held
        )


@dataclass(frozen=True, slots=True)
class Offer:
    """How this node runs ranks: by which runtimes, the best first, and as whom."""

    runtimes: tuple[str, ...]
    account: Account | None
    """None: as the agent's own user."""
    limits: tuple[str, ...]


def look(proc: Path = Path("/proc"), root: Path = Path("/")) -> Privileges:
    """Of the process whose `/proc` this is."""
    fields = dict(
        line.split(":", 1) for line in (proc / "self" / "status").read_text().splitlines() if ":" in line
    )
    uid = int(fields["Uid"].split()[1])
    mask = int(fields["CapEff"], 16)
    systemd = (root / "run/systemd/system").is_dir()
    return Privileges(
        root=uid == 0,
        held=frozenset(one.name for one in CAPABILITIES if mask >> one.bit & 1),
        systemd=systemd,
        becomes_others=mask & _BECOME == _BECOME,
        lingers=uid == 0 or not systemd or _lingers(uid, root),
    )


def offer(config: AgentConfig, privileges: Privileges, *, docker: bool = False) -> Offer:
    """Decide how ranks are run here, and say what stands in the way of more.

    `docker`: an engine's socket is there. Whether the engine answers is asked when an image is.
    """
    missing = [one for one in CAPABILITIES if one.name not in privileges.held]
    remedy = GRANT_IT if privileges.root else BY_THE_UNIT
    limits = [f"it cannot {one.lost} (no CAP_{one.name.upper()}): {remedy}" for one in missing]
    if config.local:
        return Offer(("process", *(("docker",) if docker else ())), None, tuple(limits))
    account = None
    if privileges.root:
        try:
            account = _account(config)
        except UsageError as error:
            return Offer((), None, (*limits, f"it starts no rank: {error}"))
    elif config.rank_user is not None:
        limits.append(f"its ranks run as its own user and not as {config.rank_user}: {BY_THE_UNIT}")
    wanted = RUNTIMES if config.rank_runtime is None else (config.rank_runtime,)
    without = _no_systemd(privileges)
    if without is not None and "systemd" in wanted:
        limits.append(f"its ranks are no units of systemd, {without}")
    if not privileges.lingers and "process" in wanted:
        limits.append(
            "systemd-logind removes the shared memory of its ranks when its user logs out (RemoveIPC): "
            "loginctl enable-linger"
        )
    possible = {"systemd": without is None, "process": _can_be(account, privileges), "docker": docker}
    if not possible["process"] and wanted == ("process",):
        limits.append(
            "its ranks cannot be plain processes of another user (no CAP_SETUID): leave out rank.runtime"
        )
    return Offer(tuple(name for name in wanted if possible[name]), account, tuple(limits))


def _can_be(account: Account | None, privileges: Privileges) -> bool:
    return account is None or account.uid == 0 or privileges.becomes_others


def _account(config: AgentConfig) -> Account:
    """Root is a user like any other here, but only if somebody wrote it down."""
    if config.rank_user is None:
        raise UsageError("nobody said as which user: set rank.user in agent.toml (`root` is possible)")
    return find_account(config.rank_user, config.rank_group)


def _no_systemd(privileges: Privileges) -> str | None:
    if not privileges.systemd:
        return "which is not PID 1 here: they share /dev/shm, and only the agent limits what they do"
    if not privileges.root:
        return f"for which it must be root: {BY_THE_UNIT}"
    return None


def _lingers(uid: int, root: Path) -> bool:
    """Users of the system are spared by logind; for others a file says that they stay."""
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return True
    return uid < 1000 or (root / "var/lib/systemd/linger" / name).exists()
