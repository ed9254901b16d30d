"""Case 24: another program takes the rendezvous port between the agent's check and rank 0's start."""

import re
import socket

from tests.bed.cluster import PROC, Cluster, until
from tests.bed.stand_in import configure


def rendezvous_port(bed: Cluster, name: str, generation: int) -> int:
    """As it stands on the command line of a rank."""

    def look() -> int | None:
        for one in bed.sightings():
            found = re.search(r"--master-port (\d+)", PROC.title(one.ref.pid))
            if found and (one.deployment, one.generation) == (name, generation):
                return int(found[1])
        return None

    found = until(look, f"the port of generation {generation}")
    assert found is not None
    return found


def test_a_stolen_port_costs_one_generation_and_says_why(bed: Cluster, name: str) -> None:
    configure(bed.engine, BOOT_S=4.5)  # a third of it passes before anybody listens
    bed.client.up(name, bed.intent())
    port = rendezvous_port(bed, name, 1)
    with socket.socket(socket.AF_INET6) as thief:
        thief.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        thief.bind(("::", port))
        thief.listen()
        configure(bed.engine, BOOT_S=0.1)
        ready = bed.until(name, "ready", "failed")
        assert (ready.phase, ready.generation) == ("ready", 2), ready.reason
        assert rendezvous_port(bed, name, 2) != port
    fall = ready.last_fall
    assert fall is not None
    assert (fall.generation, fall.rank, fall.cause) == (1, 0, "PORT_IN_USE")
    assert any(str(port) in line for line in fall.lines)
    assert fall.remedy
