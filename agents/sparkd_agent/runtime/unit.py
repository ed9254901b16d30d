"""The transient unit of a rank: a table, in the words of a unit file and in those of systemd's bus interface.

What each setting is for stands beside it. Measured with systemd 252; nothing here is newer than that.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from sparkd.errors import UsageError
from sparkd.records.names import RankName, parse_rank_name
from sparkd_agent.account import Account
from sparkd_agent.procfs import FOLDER_VARIABLE

SLICE: Final = "sparkd-ranks.slice"
RANKS_GROUP: Final = f"/sparkd.slice/{SLICE}"
"""Beside the agent's group, not in it: what happens to the agent's unit does not reach a rank."""
AGENT_UNIT: Final = "sparkd-agent.service"
RANK_OOM_SCORE: Final = 800
"""As the shim gives the rank. On a GB10 GPU memory counts for no process: the kernel would judge a rank of
100 GiB by its few GiB of host memory, and end sshd instead."""
STOP_S: Final = 20
"""Between systemd's SIGTERM and its SIGKILL when the machine goes down; a rank needs 11 to 13 s to obey."""
_UNLIMITED: Final = (1 << 64) - 1

Bus = tuple[str, str, Any]
"""A property as D-Bus carries it: name, signature, value."""


@dataclass(frozen=True, slots=True)
class Setting:
    """`text` is what a unit file would say; `bus` is the same for StartTransientUnit."""

    name: str
    text: str
    bus: tuple[Bus, ...]


@dataclass(frozen=True, slots=True)
class RankUnit:
    """Everything that systemd is told of a rank. It may be shown to anybody: no secret is in it."""

    name: str
    command: tuple[str, ...]
    folder: str
    account: Account | None
    environment: tuple[tuple[str, str], ...] = ()
    """Of the shim."""

    @property
    def settings(self) -> tuple[Setting, ...]:
        return tuple(_settings(self))


@dataclass(frozen=True, slots=True)
class Stdio:
    """Descriptors of this process that become the shim's standard input, output and error."""

    spec: int
    answer: int
    errors: int


def unit_name(rank: str) -> str:
    return f"{rank}.service"


def describe(rank: RankName) -> str:
    return f"Rank {rank.rank} of {rank.deployment}, generation {rank.generation} (sparkd)"


def bus_properties(unit: RankUnit, stdio: Stdio) -> list[tuple[str, tuple[str, Any]]]:
    """The argument of StartTransientUnit. `no-env-expand`: a `$` in an argument stays one.

    `no-setuid`: the shim stays root, because what it records of the rank must be out of the rank's reach.
    """
    command = [(unit.command[0], list(unit.command), ["no-setuid", "no-env-expand"])]
    properties: list[Bus] = [one for setting in unit.settings for one in setting.bus]
    if unit.account is not None:
        properties += [("User", "s", unit.account.name), ("Group", "s", unit.account.group)]
    properties += [
        ("StandardInputFileDescriptor", "h", stdio.spec),
        ("StandardOutputFileDescriptor", "h", stdio.answer),
        ("StandardErrorFileDescriptor", "h", stdio.errors),
        ("ExecStartEx", "a(sasas)", command),
    ]
    return [(name, (signature, value)) for name, signature, value in properties]


def run_words(unit: RankUnit, stdio: Stdio, pid: int) -> list[str]:
    """The words of `systemd-run`, for a node whose bus does not answer; `pid` has the descriptors open.

    It has no word for `no-setuid`, so the unit names no user there; the shim makes the rank that user all the
    same. It expands `$NAME` in arguments: a doubled `$` comes through as one.
    """
    words = ["systemd-run", "--quiet", f"--unit={unit_name(unit.name)}"]
    words += [f"--property={setting.name}={setting.text}" for setting in unit.settings]
    for name, fd in (("Input", stdio.spec), ("Output", stdio.answer), ("Error", stdio.errors)):
        words.append(f"--property=Standard{name}=file:/proc/{pid}/fd/{fd}")
    return [*words, "--", *(word.replace("$", "$$") for word in unit.command)]


def _settings(unit: RankUnit) -> Iterator[Setting]:
    rank = _parsed(unit.name)
    yield _text("Description", describe(rank))
    yield _text("Slice", SLICE)
    # The start counts once the shim was executed: an interpreter that is not there is an error at once.
    yield _text("Type", "exec")
    # Else the unit, and with it the name, would be free again after an exit with 0.
    yield _flag("RemainAfterExit", on=True)
    # A gang lives and dies together: who is started again is the coordinator's decision.
    yield _text("Restart", "no")
    # What failed stays until the agent has seen it.
    yield _text("CollectMode", "inactive")
    yield _text("KillMode", "control-group")
    yield Setting("TimeoutStopSec", f"{STOP_S}s", (("TimeoutStopUSec", "t", STOP_S * 1_000_000),))
    # One process ended for want of memory is a fall, which the agent ends in its own way; systemd's would be
    # SIGTERM and 20 s.
    yield _text("OOMPolicy", "continue")
    yield Setting("OOMScoreAdjust", str(RANK_OOM_SCORE), (("OOMScoreAdjust", "i", RANK_OOM_SCORE),))
    # The shim makes a group for the rank below its own.
    yield Setting("Delegate", "pids", (("DelegateControllers", "as", ["pids"]),))
    # Its own, so that nothing is left behind, and so that logind (RemoveIPC=) takes nothing away when the
    # user of the ranks logs out. Not writable for a user by default, and 10 % of the memory.
    yield Setting(
        "TemporaryFileSystem",
        "/dev/shm:mode=1777,size=50%",  # noqa: S108 - not a temporary file
        (("TemporaryFileSystem", "a(ss)", [("/dev/shm", "mode=1777,size=50%")]),),  # noqa: S108 - as above
    )
    yield _flag("PrivateIPC", on=True)
    # Registered memory of the network cards is locked memory: 8 MiB are the default.
    unlimited = (("LimitMEMLOCK", "t", _UNLIMITED), ("LimitMEMLOCKSoft", "t", _UNLIMITED))
    yield Setting("LimitMEMLOCK", "infinity", unlimited)
    yield Setting("TasksMax", "infinity", (("TasksMax", "t", _UNLIMITED),))
    # When the machine goes down: the agent first, so that it takes no rank's end for a fall.
    yield Setting("Before", AGENT_UNIT, (("Before", "as", [AGENT_UNIT]),))
    words = [f"{name}={value}" for name, value in ((FOLDER_VARIABLE, unit.folder), *unit.environment)]
    yield Setting("Environment", " ".join(map(_quoted, words)), (("Environment", "as", words),))


def _parsed(name: str) -> RankName:
    rank = parse_rank_name(name)
    if rank is None:
        raise UsageError(f"{name} is no rank's name")
    return rank


def _text(name: str, value: str) -> Setting:
    return Setting(name, value, ((name, "s", value),))


def _flag(name: str, *, on: bool) -> Setting:
    return Setting(name, "yes" if on else "no", ((name, "b", on),))


def _quoted(word: str) -> str:
    """As a unit file quotes it. A folder may hold spaces."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
