"""What keeps the agent running when nothing else does: its memory stays, and the kernel spares it."""

import contextlib
import gc
import os
import threading
from pathlib import Path
from typing import Final

from sparkd_agent.procfs import ProcFs

_CURRENT, _FUTURE, _ON_FAULT = 1, 2, 4
"""MCL_* of mman.h. Without ON_FAULT every mapping is made present as a whole: 36 MiB became 73."""
STACK_BYTES: Final = 256 * 1024
"""Of a thread. 8 MiB are the default, and locked memory counts what a stack once used."""
_MMAP_THRESHOLD, _MMAP_BYTES = -3, 1 << 20
"""mallopt(3). A buffer of asyncio's for one read has 256 KiB: each would be mapped, touched and unmapped."""
AGENT_OOM_SCORE: Final = -900
"""As its unit sets it. sshd spares itself in the same way (-1000)."""


def small_stacks() -> None:
    """For every thread that is started from now on."""
    threading.stack_size(STACK_BYTES)


def lock_memory() -> str | None:
    """Nothing of this process is taken out of memory any more; gives the reason if that is not possible.

    To be called when everything is loaded that the kill path needs: pages are locked once they were touched.
    What the start has left behind is given back before.
    """
    import ctypes  # noqa: PLC0415 - for agents that may lock memory

    gc.collect()
    gc.freeze()  # what was imported stays: no need to walk over it again and again
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mallopt(_MMAP_THRESHOLD, _MMAP_BYTES)
    libc.malloc_trim(0)
    if libc.mlockall(_CURRENT | _FUTURE | _ON_FAULT) == 0:
        return None
    return f"its memory is not locked: {os.strerror(ctypes.get_errno())}"


def spare_sshd(proc: Path = Path("/proc")) -> None:
    """The daemon by which people get onto a node that has no memory left: it spares itself since OpenSSH 4.7,
    unless it was started where it could not. Its sessions are left as they are.
    """
    procfs = ProcFs(proc)
    for pid, stat in procfs.stats().items():
        if stat.comm != "sshd" or stat.ppid != 1:
            continue
        score = proc / str(pid) / "oom_score_adj"
        with contextlib.suppress(OSError, ValueError):
            if int(score.read_text()) > AGENT_OOM_SCORE:
                score.write_text(str(AGENT_OOM_SCORE))


def spare_from_oom(proc: Path = Path("/proc")) -> str | None:
    """Be the last that the kernel ends; gives the reason if that is not possible."""
    try:
        (proc / "self" / "oom_score_adj").write_text(str(AGENT_OOM_SCORE))
    except OSError as error:
        return f"the kernel may end it when memory runs out: {error.strerror}"
    return None
