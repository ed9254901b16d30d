"""A process that SIGKILL does not end: agents without the right to signal strangers stand in for it."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from sparkd.local import Programs
from tests.bed.local_set import Bed, Watch, all_gone, local_bed, until
from tests.bed.stand_in import make_stand_in

_WITHOUT_CAP_KILL = """
import ctypes, os, sys
assert ctypes.CDLL(None).prctl(24, 5, 0, 0, 0) == 0  # PR_CAPBSET_DROP, CAP_KILL
os.execv(sys.argv[1], sys.argv[1:])
"""
# A child of the first rank 1 belongs to somebody else; then the engine goes on as ever.
_ENGINE = """#!{python} -IS
import os, sys, time
if "--headless" in sys.argv and not os.path.exists({once!r}) and os.fork() == 0:
    open({once!r}, "w").close()
    os.setuid(65534)
    time.sleep(600)
os.execv({engine!r}, [{engine!r}, *sys.argv[1:]])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can lose the right to signal others")
def test_what_cannot_be_killed_is_named_and_nothing_starts_beside_it(tmp_path: Path) -> None:
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    (tmp_path / "models" / "tiny" / "config.json").write_text("{}")
    inner, outer = make_stand_in(tmp_path / "inner"), make_stand_in(tmp_path / "engine")
    outer.write_text(_ENGINE.format(python=sys.executable, engine=str(inner), once=str(tmp_path / "once")))
    programs = Programs()
    programs = Programs(agent=(sys.executable, "-c", _WITHOUT_CAP_KILL, *programs.agent))
    with local_bed(tmp_path, outer, tmp_path / "models", programs=programs) as bed:
        _runs(bed, f"u{os.getpid()}")


def _runs(bed: Bed, name: str) -> None:
    deployment = bed.up(name)
    deployment.ready()
    old = deployment.all_processes()
    (stubborn,) = [p for p in old if Path(f"/proc/{p.pid}").stat().st_uid == 65534]
    watch, since = Watch(bed.client, name), time.monotonic()
    os.kill(deployment.process(1, "VLLM::Worker").pid, signal.SIGKILL)
    watch.reached("recovering", since)
    all_gone([p for p in old if p not in (stubborn, deployment.process(1, "shim"))])
    failed = deployment.until("failed")
    assert "reboot needed" in failed.reason
    assert f"pid {stubborn.pid}" in failed.reason
    (verdict,) = [v for v in failed.verdicts if v.id == "UNKILLABLE"]
    assert f"pid {stubborn.pid}" in verdict.evidence
    assert "state S" in verdict.evidence
    assert failed.generation == 1
    assert stubborn.alive

    bed.up(name)
    waiting = until(lambda: deployment.status().waiting_for, "what it waits for")
    assert (waiting.what, waiting.node) == ("an old rank to end", "local-2")
    assert deployment.status().phase == "pending"
    os.kill(stubborn.pid, signal.SIGKILL)
    deployment.ready(generation=2)
    all_gone(old)
