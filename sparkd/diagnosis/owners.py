"""What computes on a node and belongs to no rank of its agent, by what it is. A local set is a guest."""

from collections.abc import Sequence

from sparkd.records.defaults import GIB
from sparkd.records.facts import ProcessFacts
from sparkd.records.preflight import Member

_RAY = ("raylet", "gcs_server")
_SHOWN = 4


def ray(member: Member) -> list[ProcessFacts]:
    return [one for one in _others(member) if _is_ray(one)]


def orphans(member: Member) -> list[ProcessFacts]:
    """Engines whose starter is gone."""
    return [one for one in _others(member) if not _is_ray(one) and _is_orphan(one)]


def owners(member: Member) -> list[ProcessFacts]:
    """All others."""
    return [one for one in _others(member) if not _is_ray(one) and not _is_orphan(one)]


def listed(processes: Sequence[ProcessFacts]) -> str:
    more = f"; and {len(processes) - _SHOWN} more" if len(processes) > _SHOWN else ""
    return "; ".join(_in_words(one) for one in processes[:_SHOWN]) + more


def containers(processes: Sequence[ProcessFacts]) -> str:
    """The command that ends their containers, after a comma; nothing if they are in none."""
    ids = dict.fromkeys(one.container for one in processes if one.container is not None)
    return f", docker stop {' '.join(ids)}" if ids else ""


def _others(member: Member) -> tuple[ProcessFacts, ...]:
    return member.machine.processes if member.machine is not None and not member.local else ()


def _is_ray(one: ProcessFacts) -> bool:
    return one.title.startswith("ray::") or one.title.split(" ", 1)[0].rpartition("/")[2] in _RAY


def _is_orphan(one: ProcessFacts) -> bool:
    return one.title.startswith("VLLM::") and one.parent == 1 and one.container is None


def _in_words(one: ProcessFacts) -> str:
    told = [f"pid {one.pid} {one.title[:60]}"]
    told += [f"GPU {one.gpu_bytes / GIB:.1f} GiB"] if one.gpu_bytes else []
    told += [f"{one.rss_bytes / GIB:.1f} GiB resident"] if one.rss_bytes >= GIB / 10 else []
    told += [f"rank {one.rank}"] if one.rank else []
    told += [f"container {one.container}"] if one.container else []
    return ", ".join(told)
