"""What the watch has to look at on this node, by what there is and what the agent may do."""

from pathlib import Path

from sparkd.records.verdict import Verdict
from sparkd_agent.config import AgentConfig
from sparkd_agent.privileges import Privileges
from sparkd_agent.procfs import ProcFs
from sparkd_agent.watch import driver, shm
from sparkd_agent.watch.cache import DROP_CACHES, Cache
from sparkd_agent.watch.watch import GpuReader, Surroundings


def surroundings(
    config: AgentConfig, privileges: Privileges, procfs: ProcFs, before: Verdict | None
) -> Surroundings:
    """`before`: how the boot before this one ended, if not in good order."""
    return Surroundings(
        cache=_cache(config, privileges),
        gpu=_gpu(),
        versions=lambda: (driver.module_version(), driver.library_version()),
        # What other users' processes map is not shown to everybody: nothing could be called unmapped then.
        stale_shm=(lambda: shm.unmapped(procfs)) if "sys_ptrace" in privileges.held else list,
        before=before,
    )


def _cache(config: AgentConfig, privileges: Privileges) -> Cache:
    if config.local:
        return Cache(None, "a local set leaves the machine's page cache alone")
    if not privileges.root:
        return Cache(None, "it is not root: only its own model's pages can be dropped")
    return Cache(DROP_CACHES)


def _gpu(proc: Path = Path("/proc")) -> GpuReader | None:
    """None where no driver is loaded."""
    if driver.module_version(proc) is None:
        return None
    from sparkd_agent.watch.nvml import GpuThread  # noqa: PLC0415 - ctypes and a thread, for nodes with a GPU

    return GpuThread()
