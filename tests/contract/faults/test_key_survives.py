"""Case 36, with an API key: an agent that dies right after a start is not locked out of its rank."""

import os
import signal
import socket
from pathlib import Path

import pytest

from tests.bed.cluster import cluster, until
from tests.bed.stand_in import configure


def own_address() -> str:
    """An address of this machine at which a key is asked for; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has loopback only")
        return str(probe.getsockname()[0])


def test_the_next_agent_knows_the_key(tmp_path: Path) -> None:
    with cluster(tmp_path, 1) as bed:
        configure(bed.engine, BOOT_S=0.1)
        agent = bed.agents[0]
        config = Path(agent.argv[-1])
        text = config.read_text().replace("local = true", "local = false")
        text = text.replace('address = "127.0.0.1"', f'address = "{own_address()}"')
        # An agent that is root, and not of a local set, starts ranks as nobody until it is told as whom.
        config.write_text(
            f'{text}\n[rank]\nuser = "root"\nruntime = "process"\n' if os.geteuid() == 0 else text
        )
        bed.coordinator.start()
        agent.start("agent.10-started-committed:kill")
        until(bed.in_contact, "the agent to be in contact")
        bed.client.up("k", bed.intent("layout.tp=1", "api.key=generate"))
        assert agent.wait() == -signal.SIGKILL
        agent.start()
        ready = bed.until("k", "ready", "recovering", "failed")
        assert (ready.phase, ready.generation) == ("ready", 1), ready.reason
        assert ready.endpoint is not None
        assert ready.endpoint.key_file is not None
        (folder,) = (bed.agent_state(1) / "ranks").iterdir()
        assert (folder / "api.key").stat().st_mode & 0o777 == 0o600
        assert (folder / "api.key").read_text() == Path(ready.endpoint.key_file).read_text().strip()
        bed.client.down("k")
        bed.until("k", "stopped")
