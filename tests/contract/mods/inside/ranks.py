"""One rank of many without processes: what vLLM asks its parallel state is answered from here."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace

from vllm.distributed import parallel_state


@contextlib.contextmanager
def rank_of(rank: int, size: int) -> Iterator[None]:
    """Everything built and loaded inside belongs to this tensor-parallel rank."""
    before = parallel_state._TP, parallel_state._PP
    parallel_state._TP = SimpleNamespace(rank_in_group=rank, world_size=size)
    parallel_state._PP = SimpleNamespace(rank_in_group=0, world_size=1, is_first_rank=True, is_last_rank=True)
    try:
        yield
    finally:
        parallel_state._TP, parallel_state._PP = before
