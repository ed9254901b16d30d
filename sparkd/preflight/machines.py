"""What stands in the way on one machine: room, limits, its name, its clock, and who else computes there."""

import ipaddress
from collections.abc import Iterator
from typing import Final

from sparkd.detect import node as detect
from sparkd.preflight.member import Member
from sparkd.records.defaults import DEFAULTS, GIB, MIB, Defaults
from sparkd.records.facts import DiskFacts, MachineFacts, ProcessFacts
from sparkd.records.verdict import Severity, Verdict

_RAY: Final = ("raylet", "gcs_server", "ray::")


def machine_verdicts(
    member: Member, *, ranks: int, named_interface: bool, limits: Defaults = DEFAULTS
) -> Iterator[Verdict]:
    """`ranks`: of the gang, 0 without a profile. `named_interface`: the plan tells gloo which one to use.

    A local set is a guest on somebody's machine, whose other programs and limits are not its business.
    """
    machine = member.machine
    if machine is None:
        yield Verdict(
            "FACTS_UNKNOWN",
            Severity.WARN,
            "this node did not say in what state it is",
            evidence=member.machine_unknown,
            cause="versions, limits and what else runs there were not compared",
            remedy="sparkd nodes upgrade, if its agent is an old one; else look at its journal",
            node=member.name,
        )
        return
    yield from _disks(member, machine, limits)
    if member.facts.local:
        return
    yield from _clock(member, limits)
    for verdict in (
        *detect.cma(machine.cma_total, machine.cma_free),
        *detect.driver(machine.driver, machine.driver_library),
        *detect.stale_shm([(file.path, file.bytes) for file in machine.stale or ()], limits),
    ):
        yield _on(verdict, member)
    yield from _memlock(member, machine)
    yield from _shared_memory(member, machine, limits)
    if ranks > 1:
        yield from _hostname(member, machine, named_interface=named_interface)
    yield from _others(member, machine)


def _on(verdict: Verdict, member: Member) -> Verdict:
    return Verdict(
        verdict.id,
        verdict.severity,
        verdict.title,
        verdict.evidence,
        verdict.cause,
        verdict.remedy,
        member.name,
    )


def _disks(member: Member, machine: MachineFacts, limits: Defaults) -> Iterator[Verdict]:
    for disk in machine.disks:
        if disk.use == "models":
            continue  # a full one serves as well as an empty one
        full = disk.use == "state" and disk.free < limits.disk_block_bytes
        if full or disk.free < min(limits.enrol_disk_bytes, limits.disk_warn_share * disk.total):
            yield Verdict(
                "DISK_FULL",
                Severity.BLOCK if full else Severity.WARN,
                f"{'no' if full else 'little'} room is left on a disk",
                evidence=f"{disk.path} ({_use(disk)}): {disk.free / MIB:.0f} MiB of {disk.total / MIB:.0f}",
                cause="a rank's start is written down before it happens, and its log is kept there"
                if disk.use == "state"
                else "vLLM puts sockets and compiled code there",
                remedy=f"on {member.name}: du -xh --max-depth=2 {disk.path} | sort -h | tail",
                node=member.name,
            )


def _use(disk: DiskFacts) -> str:
    return "the agent's state" if disk.use == "state" else "temporary files"


def _clock(member: Member, limits: Defaults) -> Iterator[Verdict]:
    yield from detect.clock(-member.clock_offset_s, member.clock_error_s, member.name, limits)


def _memlock(member: Member, machine: MachineFacts) -> Iterator[Verdict]:
    """Case 30. Units of systemd have no limit; a plain process has its agent's."""
    adapters = [part for part in machine.firmware if part != "system"]
    if member.runtime != "process" or machine.memlock_bytes is None or not adapters:
        return
    yield Verdict(
        "MEMLOCK",
        Severity.BLOCK,
        "a rank could not lock the memory that RDMA needs",
        evidence=f"max locked memory {machine.memlock_bytes // 1024} KiB, RDMA devices {', '.join(adapters)}",
        cause="ibv_reg_mr would fail with `Cannot allocate memory`",
        remedy="run the agent by sparkd-agent.service, which knows no such limit, or raise `ulimit -l`",
        node=member.name,
    )


def _shared_memory(member: Member, machine: MachineFacts, limits: Defaults) -> Iterator[Verdict]:
    """Of plain processes, which share the node's; a unit of systemd has one of its own."""
    if member.runtime != "process" or machine.shm_free is None or machine.shm_free >= limits.shm_least_bytes:
        return
    total = (machine.shm_total or 0) / MIB
    yield Verdict(
        "SHM_SPACE",
        Severity.BLOCK,
        "there is too little shared memory for vLLM's message queues",
        evidence=f"of /dev/shm {machine.shm_free / MIB:.0f} MiB of {total:.0f} MiB free",
        remedy="remove what no process uses there, or: mount -o remount,size=10g /dev/shm",
        node=member.name,
    )


def _hostname(member: Member, machine: MachineFacts, *, named_interface: bool) -> Iterator[Verdict]:
    """Case 25. Gloo asks for its own name's address where nobody names an interface."""
    addresses = machine.hostname_addresses
    if addresses is None or any(not _is_loopback(address) for address in addresses):
        return
    resolves = f"resolves to {', '.join(addresses)}" if addresses else "does not resolve"
    yield Verdict(
        "GLOO_LOOPBACK",
        Severity.NOTE if named_interface else Severity.BLOCK,
        "this node's own name leads to no address that others can reach",
        evidence=f"{machine.hostname} {resolves}",
        cause="sparkd names gloo's interface, so its ranks do not ask; other programs do"
        if named_interface
        else "gloo would offer the loopback address to its peers, and the start would hang",
        remedy=f"in /etc/hosts of {member.name}: {member.facts.fabric_address} {machine.hostname}",
        node=member.name,
    )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _others(member: Member, machine: MachineFacts) -> Iterator[Verdict]:
    """Cases 14 and 15: what computes here and belongs to no rank of this node's agent."""
    ray = [one for one in machine.processes if _program(one.title) in _RAY or one.title.startswith("ray::")]
    if ray:
        yield Verdict(
            "RAY_MEMMON",
            Severity.BLOCK,
            "Ray runs on this node",
            evidence=_listed(ray),
            cause="its memory monitor kills ranks at 95 % of the memory, which loading reaches",
            remedy=f"on {member.name}: ray stop{_containers(ray)}",
            node=member.name,
        )
    rest = [one for one in machine.processes if one not in ray]
    orphans = [one for one in rest if _is_orphan(one)]
    if orphans:
        yield Verdict(
            "ORPHAN_ENGINECORE",
            Severity.BLOCK,
            "an engine without its server is left on this node",
            evidence=_listed(orphans),
            cause="its API server was killed alone; it keeps its memory until it is ended",
            remedy=f"on {member.name}: kill -9 {' '.join(str(one.pid) for one in orphans)}",
            node=member.name,
        )
    owners = [one for one in rest if one not in orphans]
    if owners:
        holds = any(_is_large(one) for one in owners)
        pids = " ".join(str(one.pid) for one in owners if not one.container)
        yield Verdict(
            "GPU_OWNER",
            Severity.BLOCK if holds else Severity.WARN,
            "another engine runs on this node",
            evidence=_listed(owners),
            cause="a GB10 has one pool of memory, and two engines do not fit into it",
            remedy=f"end it where it was started{_containers(owners)}{f', or: kill {pids}' if pids else ''}",
            node=member.name,
        )


def _program(title: str) -> str:
    return title.split(" ", 1)[0].rpartition("/")[2]


def _is_orphan(one: ProcessFacts) -> bool:
    return one.title.startswith("VLLM::") and one.parent == 1 and one.container is None


def _is_large(one: ProcessFacts) -> bool:
    return (one.gpu_bytes or 0) > 0 or one.rss_bytes >= GIB


def _listed(processes: list[ProcessFacts]) -> str:
    return "; ".join(_in_words(one) for one in processes[:4]) + (
        f"; and {len(processes) - 4} more" if len(processes) > 4 else ""
    )


def _in_words(one: ProcessFacts) -> str:
    told = [f"pid {one.pid} {one.title[:60]}"]
    told += [f"GPU {one.gpu_bytes / GIB:.1f} GiB"] if one.gpu_bytes else []
    told += [f"{one.rss_bytes / GIB:.1f} GiB resident"] if one.rss_bytes >= GIB / 10 else []
    told += [f"rank {one.rank}"] if one.rank else []
    told += [f"container {one.container}"] if one.container else []
    return ", ".join(told)


def _containers(processes: list[ProcessFacts]) -> str:
    ids = dict.fromkeys(one.container for one in processes if one.container)
    return f", docker stop {' '.join(str(one) for one in ids)}" if ids else ""
