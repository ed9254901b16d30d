"""Case 20: two coordinators on two state folders, of which one is a copy of the other."""

import re
import shutil
from pathlib import Path

import pytest

from sparkd.client import Client
from sparkd.errors import SparkdError, Unavailable
from tests.bed.cluster import Cluster, DaemonProcess, cluster, until
from tests.bed.ports import free_port
from tests.bed.stand_in import configure


def second_coordinator(bed: Cluster, state: Path) -> tuple[DaemonProcess, Client]:
    """The same program on a copied state; every agent knows its address, as the second of two."""
    rest, agents = free_port(), free_port()
    first_url = bed.coordinator.argv[bed.coordinator.argv.index("--agents") + 1]
    argv = list(bed.coordinator.argv)
    for option, value in (
        ("--state-dir", str(state)),
        ("--rest", f"127.0.0.1:{rest}"),
        ("--agents", f"127.0.0.1:{agents}"),
    ):
        argv[argv.index(option) + 1] = value
    for agent in bed.agents:
        config = Path(agent.argv[-1])
        both = f'urls = ["http://{first_url}", "http://127.0.0.1:{agents}"]'
        config.write_text(re.sub(r"urls = .*", both, config.read_text()))
    daemon = DaemonProcess("second", argv, bed.coordinator.env, bed.folder / "second.log")
    return daemon, Client(f"http://127.0.0.1:{rest}", bed.token)


def test_the_agents_obey_one_and_the_models_serve_on(tmp_path: Path) -> None:
    with cluster(tmp_path, 2) as bed:
        configure(bed.engine, BOOT_S=0.1)
        bed.coordinator.start()
        second, client = second_coordinator(bed, tmp_path / "copy")
        for agent in bed.agents:
            agent.start()
        until(bed.in_contact, "both agents to be in contact")
        bed.client.up("a", bed.intent())
        before = bed.until("a", "ready")
        shutil.copytree(bed.coordinator_state, tmp_path / "copy")
        second.start()
        try:
            # Nobody speaks to it: it decides nothing, and says so.
            said = until(lambda: status_of(client), "the second one to answer")
            assert said == ("recovering", before.generation), "it has heard from nobody"
            with pytest.raises(Unavailable):
                client.down("a")

            # The first one dies, its agents turn to the copy, which takes over what runs.
            bed.coordinator.kill()
            until(lambda: status_of(client) == ("ready", before.generation), "the copy to take over")

            # The first one comes back, and finds that another is obeyed.
            bed.coordinator.start()
            until(lambda: bed.coordinator.alive, "it to run")
            with pytest.raises(Unavailable):
                until(lambda: bed.client.down("a"), "no answer but a refusal", 5.0)
            assert status_of(client) == ("ready", before.generation)
            (found,) = client.status().deployments
            assert [r.pid for r in found.ranks] == [r.pid for r in before.ranks]
            client.down("a")
            until(lambda: not bed.sightings(), "nothing to be left")
        finally:
            second.end()


def status_of(client: Client) -> tuple[str, int] | None:
    try:
        (found,) = client.status().deployments
    except SparkdError:
        return None
    return found.phase, found.generation
