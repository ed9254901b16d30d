"""What the watch may look at and drop, by who the agent is."""

from dataclasses import replace
from pathlib import Path

import pytest

from sparkd_agent.config import AgentConfig
from sparkd_agent.privileges import Privileges
from sparkd_agent.procfs import ProcFs
from sparkd_agent.watch.around import surroundings
from sparkd_agent.watch.cache import DROP_CACHES

ROOT = Privileges(root=True, held=frozenset({"sys_ptrace"}), systemd=True)
USER = Privileges(root=False, held=frozenset(), systemd=True)
NODE = AgentConfig(
    node_id="n",
    name="n",
    address="10.0.0.1",
    fabric_address="10.0.1.1",
    fabric_interface="enp1s0f1np1",
    local=False,
    urls=("https://head:7071",),
    holder="h",
    engines={},
    model_roots=(),
    state=Path("/nowhere"),
)


@pytest.mark.parametrize(
    ("config", "privileges", "control", "why"),
    [
        (NODE, ROOT, DROP_CACHES, ""),
        (NODE, USER, None, "it is not root: only its own model's pages can be dropped"),
        (replace(NODE, local=True), ROOT, None, "a local set leaves the machine's page cache alone"),
    ],
)
def test_whose_cache_is_dropped(
    config: AgentConfig, privileges: Privileges, control: Path | None, why: str
) -> None:
    cache = surroundings(config, privileges, ProcFs(), None).cache
    assert (cache.control, cache.why_not) == (control, why)
