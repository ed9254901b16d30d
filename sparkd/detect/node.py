"""What is wrong with a node apart from its load: found by single looks, each with its remedy. Pure."""

from collections.abc import Iterable
from typing import Final

from sparkd.records.defaults import DEFAULTS, GIB, Defaults
from sparkd.records.verdict import Severity, Verdict

_KILLERS: Final = {
    "dgx-anti-oom": "ends processes when memory is short",
    "earlyoom": "ends the process with the highest oom_score when memory is short",
    "low-memory-moni": "tells desktops to end programs when memory is short",
    "nohang": "ends processes when memory is short",
    "oomd": "ends control groups under memory pressure",
    "raylet": "Ray's memory monitor ends workers at 95 % of the memory",
    "systemd-oomd": "ends control groups under memory pressure",
    "thrash-protect": "stops processes when the machine swaps",
}
"""By name as `/proc/PID/stat` shows it, cut to 15 characters (tonyd2wild#31, GLM-5.3 PR #2)."""


def other_killers(names: Iterable[str]) -> tuple[Verdict, ...]:
    """Programs that end processes too: they choose by what they see of a rank, which is not what it holds."""
    found = sorted(_KILLERS.keys() & set(names))
    if not found:
        return ()
    return (
        Verdict(
            "OTHER_KILLER",
            Severity.NOTE,
            f"another program of this node ends processes: {', '.join(found)}",
            evidence="; ".join(f"{name} {_KILLERS[name]}" for name in found),
            cause="GPU memory is not in a rank's RSS, so such a program may end sshd or half a gang instead",
            remedy="stop it on nodes that serve models, or tell it to spare everything but the ranks",
        ),
    )


def cma(total: int | None, free: int | None) -> tuple[Verdict, ...]:
    """A kernel bug that hides tens of GiB; every registration of RDMA memory fails (case 31). Bytes."""
    if total is None or free is None or free <= total:
        return ()
    return (
        Verdict(
            "KHO_CMA",
            Severity.BLOCK,
            "this kernel has lost count of its reserved memory: RDMA cannot register any",
            evidence=f"CmaFree {free // 1024} kB is more than CmaTotal {total // 1024} kB",
            cause="kernels 7.0.0-1019-nvidia and 7.0.0-31 reserve memory for a handover that is not used",
            remedy="boot with kho=off",
        ),
    )


def driver(module: str | None, library: str | None) -> tuple[Verdict, ...]:
    """The loaded kernel module against the library on disk, which an update leaves apart until a reboot."""
    if module is None or library is None or module == library:
        return ()
    return (
        Verdict(
            "DRIVER_MISMATCH",
            Severity.BLOCK,
            "the NVIDIA driver was updated under the running kernel",
            evidence=f"the loaded module is {module}, the library is {library}",
            cause="no new CUDA process can start before both are of one version",
            remedy="reboot this node",
        ),
    )


def stale_shm(files: Iterable[tuple[str, int]], limits: Defaults = DEFAULTS) -> tuple[Verdict, ...]:
    """Files that an engine left in shared memory and that nobody maps (case 13): path and bytes."""
    left = sorted(files, key=lambda one: -one[1])
    size = sum(count for _, count in left) / GIB
    if size * GIB < limits.stale_shm_bytes:
        return ()
    shown = ", ".join(name for name, _ in left[:5])
    return (
        Verdict(
            "STALE_SHM",
            Severity.WARN,
            f"{size:.1f} GiB of shared memory belong to no living process",
            evidence=shown + (f" and {len(left) - 5} more" if len(left) > 5 else ""),
            cause="an engine that was not started by this agent was killed; on a GB10 this is GPU memory too",
            remedy="remove these files once nothing of that engine runs",
        ),
    )


def clock(off: float, error: float, node: str, limits: Defaults = DEFAULTS) -> tuple[Verdict, ...]:
    """Nothing decides by a node's clock; people and certificates do. Seconds ahead of the coordinator's."""
    if abs(off) < limits.clock_warn_s:
        return ()
    return (
        Verdict(
            "CLOCK_OFF",
            Severity.WARN,
            f"its clock is {abs(off):.0f} s {'ahead' if off > 0 else 'behind'}",
            evidence=f"compared with the coordinator's, within {error:.3f} s",
            cause="no time service runs there, or not here",
            remedy="let both machines follow one time service (chrony, systemd-timesyncd)",
            node=node,
        ),
    )


def late(seconds: float, limits: Defaults = DEFAULTS) -> tuple[Verdict, ...]:
    """How much later than it should have the agent came to look."""
    if seconds < limits.watch_late_s:
        return ()
    return (
        Verdict(
            "AGENT_LATE",
            Severity.WARN,
            "the agent does not get to run",
            evidence=f"it came {seconds:.1f} s too late to look at this node's memory",
            cause="the node is short of memory or of processor time",
            remedy="if it stays so, end what else runs there",
        ),
    )


_KILLED_SHOWN: Final = 8
"""One after the other the kernel kills several; which of them was a rank's is asked later."""


def oom_kills(count: int) -> tuple[Verdict, ...]:
    """So many since the rank began, by the kernel's counter: for an agent that may not read its log."""
    if count <= 0:
        return ()
    return (
        _kernel_oom(f"{count} since this rank began; the kernel's log, which names them, cannot be read"),
    )


def _kernel_oom(evidence: str) -> Verdict:
    return Verdict(
        "KERNEL_OOM",
        Severity.WARN,
        "the kernel's OOM killer has struck",
        evidence=evidence,
        cause="memory had run out before anybody ended a rank",
        remedy="raise memory.floors_gib of the profile, or lower what it uses",
    )


def kernel_lines(lines: Iterable[str]) -> tuple[Verdict, ...]:
    """Lines of the kernel's log that mean something for a rank, the newest of each kind."""
    kept = list(lines)
    found = []
    killed = [line for line in kept if "Killed process" in line or "invoked oom-killer" in line]
    if killed:
        found.append(_kernel_oom("\n".join(killed[-_KILLED_SHOWN:])))
    xid = [line for line in kept if "NVRM: Xid" in line]
    if xid:
        found.append(
            Verdict(
                "GPU_XID",
                Severity.WARN,
                "the GPU's driver reports a fault",
                evidence=xid[-1],
                remedy="look the number up in NVIDIA's list of Xid errors; if it comes back, reboot the node",
            )
        )
    return tuple(found)
