"""What an earlier run of the agent left on this node: ranks to go on with, and remains to tidy up."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from sparkd.records.names import RankName, parse_rank_name
from sparkd.records.rank import RankSpec
from sparkd_agent.ledger import Ledger
from sparkd_agent.procfs import ProcFs
from sparkd_agent.runtime.base import RankHandle, Runtime
from sparkd_agent.specs import unknown_spec


@dataclass(frozen=True, slots=True)
class FoundRank:
    name: RankName
    spec: RankSpec
    runtime: Runtime
    handle: RankHandle


@dataclass(slots=True)
class Found:
    ranks: list[FoundRank] = field(default_factory=list)
    remains: list[tuple[Runtime, RankHandle]] = field(default_factory=list)
    """Of ranks that are over: an earlier run may have died before it tidied up."""
    folders: frozenset[str] = frozenset()
    """Every name that something on this node has: it is spent."""


def find(runtimes: Iterable[Runtime], ledger: Ledger, procfs: ProcFs) -> Found:
    specs = {row.spec.name: row.spec for row in ledger.ranks()}
    unfinished = ledger.unfinished()
    listed = [(runtime, handle) for runtime in runtimes for handle in runtime.list()]
    found = Found(folders=frozenset(handle.name for _, handle in listed))
    for runtime, handle in listed:
        name = parse_rank_name(handle.name)
        if name is None:
            continue
        spec = specs.get(handle.name)
        over = handle.name not in unfinished if spec is not None else not _is_alive(handle, procfs)
        if over:
            found.remains.append((runtime, handle))
        else:
            # Without a ledger what the rank was is lost, that it runs is not.
            found.ranks.append(FoundRank(name, spec or unknown_spec(handle.name), runtime, handle))
    return found


def _is_alive(handle: RankHandle, procfs: ProcFs) -> bool:
    known = (ref for ref in (handle.shim, handle.leader) if ref is not None)
    return handle.coming_up or any(map(procfs.alive, known))
