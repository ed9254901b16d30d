"""A follower whose rank 0 is gone while nobody is there who could say so. A real agent, a real socket."""

import socket
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sparkd.records.defaults import DEFAULTS
from sparkd.records.rank import Address
from sparkd_agent.procfs import ProcFs
from tests.bed.agent_process import ScriptedCoordinator, agent_process
from tests.bed.ports import free_port
from tests.bed.ranks import rank_spec

NAME = "sparkd-t-g1-r1"
SERVED_S = 15.0
"""Long enough for the lease to end and for rank 0 to be tried."""


@pytest.mark.timeout(300)
def test_a_follower_outlives_the_coordinator_and_not_rank_0_as_well(tmp_path: Path) -> None:
    accepted: list[float] = []

    def take(head: socket.socket) -> None:
        while True:
            try:
                head.accept()[0].close()
            except OSError:
                return
            accepted.append(time.monotonic())

    head = socket.create_server(("127.0.0.1", 0))
    taking = threading.Thread(target=take, args=(head,))
    taking.start()
    one = rank_spec(NAME, rank=1, ranks=2, rendezvous=Address("127.0.0.1", head.getsockname()[1]))
    one = replace(one, descriptor=replace(one.descriptor, api_port=free_port()))
    try:
        with ScriptedCoordinator() as script, agent_process(tmp_path, script.url) as agent:
            script.publish(1, ranks=(one,))
            pid = script.rank(NAME, "running").pid or 0
            script.close()
            follower = ProcFs().ref(pid)
            assert follower is not None
            time.sleep(SERVED_S)
            assert accepted, "rank 0 was tried"
            assert ProcFs().alive(follower)
            head.shutdown(socket.SHUT_RDWR)
            gone_at = time.monotonic()
            while ProcFs().alive(follower):
                assert time.monotonic() < gone_at + 3 * DEFAULTS.orphaned_follower_s, agent.log
                time.sleep(0.1)
            assert time.monotonic() - gone_at > DEFAULTS.orphaned_follower_s - DEFAULTS.head_try_s
            assert "rank 0 has taken no connection for 60 s" in agent.log
    finally:
        head.close()
        taking.join()
