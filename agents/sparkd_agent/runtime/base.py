"""What every runtime offers: four verbs, and the handle by which a rank is found again.

A runtime makes a rank exist and knows what exists. Ending one is not its business: there is one kill path for
all runtimes (`kill.py`), without D-Bus or Docker in it; `stop` only tidies what is left afterwards.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from sparkd.clock import Instant
from sparkd.engine.environment import diverts
from sparkd.engine.plugin import plugin_folder, with_plugin
from sparkd.records.rank import RankSpec
from sparkd_agent.account import Account
from sparkd_agent.procfs import RANK_VARIABLE, ProcessRef

ALLOWED_ENVIRONMENT: Final = (
    "HOME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LD_LIBRARY_PATH",
    "LOGNAME",
    "PATH",
    "TMPDIR",
    "TZ",
    "USER",
    "XDG_CACHE_HOME",
)
"""All that a rank gets of its agent's own environment."""

DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Launch:
    """How a rank's leader is executed. `env` is the whole environment and may hold secrets."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    account: Account | None = None
    """None: the agent's own user."""


def make_launch(
    spec: RankSpec,
    command: tuple[str, ...],
    *,
    agent_env: Mapping[str, str],
    rank_env: Mapping[str, str],
    cwd: str,
    account: Account | None = None,
) -> Launch:
    """Compose a rank's argv and environment from scratch.

    `command` is the engine's own, from the agent's configuration. Later wins: the allow-list out of the
    agent's environment, whose the rank is, `[rank.env]` of the node, the spec, its secrets, and the rank's
    name, which nothing overrides. Left out is what is empty, by which a spec takes away what the node would
    set, and what leads ranks past each other. sparkd's plug-in for vLLM comes first on PYTHONPATH.
    """
    allowed = {name: agent_env[name] for name in ALLOWED_ENVIRONMENT if name in agent_env}
    own = {} if account is None else account.environment
    env = {
        "PATH": DEFAULT_PATH,
        **allowed,
        **own,
        **{name: value for name, value in rank_env.items() if diverts(name) is None},
        **spec.env,
        **spec.secrets,
        RANK_VARIABLE: spec.name,
    }
    env = with_plugin({name: value for name, value in env.items() if value}, plugin_folder())
    return Launch(argv=command + spec.args, env=env, cwd=cwd, account=account)


def make_inner_launch(
    spec: RankSpec, *, rank_env: Mapping[str, str], account: Account | None = None
) -> Launch:
    """What an image adds to: its own environment comes below this one, its command before these arguments.

    Nothing of the node's own environment is in it; what is empty takes away what the image sets. A home of
    the node means nothing to an image, so HOME is left to the runtime; the user's names stay, for libraries
    that ask for them.
    """
    own = {} if account is None else {"USER": account.name, "LOGNAME": account.name}
    of_node = {name: value for name, value in rank_env.items() if diverts(name) is None}
    env = {**own, **of_node, **spec.env, **spec.secrets, RANK_VARIABLE: spec.name}
    return Launch(argv=spec.args, env=env, cwd="", account=account)


@dataclass(frozen=True, slots=True)
class RankHandle:
    """One rank as its runtime knows it; plain data, so that a ledger can keep it.

    `shim` and `leader` are None for a rank that has a folder but no record: it was never started, or its shim
    is just coming up. `pipes` are the inodes of the pipes that the rank's stdout and stderr were. `cgroup` is
    the folder of the group that holds shim and rank, for a rank that systemd started.
    """

    name: str
    folder: str
    boot: str
    started: Instant
    shim: ProcessRef | None = None
    leader: ProcessRef | None = None
    pipes: tuple[int, ...] = ()
    cgroup: str | None = None
    coming_up: bool = False
    """Something was asked to start the shim and may still do so: wait for its record."""


class Runtime(Protocol):
    async def start(self, spec: RankSpec, launch: Launch) -> RankHandle:
        """Make the rank exist, at most once per name.

        Raises Spent when the name was ever started here, RankNotStarted when nothing of it runs.
        """
        ...

    def list(self) -> list[RankHandle]:
        """Everything this runtime has a record of, running or not."""
        ...

    async def stop(self, handle: RankHandle) -> None:
        """Tidy up after a rank whose processes are gone. Idempotent."""
        ...

    def forget(self, name: str) -> None:
        """Remove the rank's records and log. From then on only the ledger prevents a second start."""
        ...

    def close(self) -> None:
        """The agent ends; what runs lives on."""
        ...
