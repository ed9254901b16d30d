"""One rank of many without processes: what vLLM asks its parallel state is answered from here."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace

from vllm.distributed import parallel_state


@contextlib.contextmanager
def rank_of(rank: int, size: int) -> Iterator[None]:
    """Everything built and loaded inside belongs to this tensor-parallel rank."""
    names = ("_TP", "_PP", "_DP", "_PCP")
    before = [getattr(parallel_state, name) for name in names]
    alone = SimpleNamespace(rank_in_group=0, world_size=1, is_first_rank=True, is_last_rank=True)
    # What a rank would add up with the others stays its own part; the case adds the parts of all.
    own = SimpleNamespace(rank_in_group=rank, world_size=size, all_reduce=lambda part: part)
    try:
        for name in names:
            setattr(parallel_state, name, own if name == "_TP" else alone)
        yield
    finally:
        for name, group in zip(names, before, strict=True):
            setattr(parallel_state, name, group)
