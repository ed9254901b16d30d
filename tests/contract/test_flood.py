"""A rank that writes without end, seen from outside: it is never blocked, and nobody else notices."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sparkd.records.defaults import DEFAULTS
from sparkd_agent.procfs import ProcFs
from tests.bed.local_set import Bed, local_bed, until
from tests.bed.stand_in import configure, make_stand_in

FLOOD_BYTES = 300 << 20
"""More than twice the cap. With 1 GB it takes the machine of the tests half a minute and shows the same."""
CAP_BYTES = DEFAULTS.log_segments * DEFAULTS.log_segment_bytes


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    (tmp_path / "models" / "tiny" / "config.json").write_text("{}")
    with local_bed(tmp_path, make_stand_in(tmp_path / "engine"), tmp_path / "models") as bed:
        yield bed


@pytest.mark.timeout(300)
def test_a_flood_fills_its_cap_and_nothing_else(bed: Bed) -> None:
    configure(bed.folder / "engine", FLOOD_BYTES=f"{FLOOD_BYTES}@1")
    procfs = ProcFs()
    agents = [daemon.pid for daemon in bed.local.agents]

    def resident() -> list[int]:
        stats = [procfs.stat(pid) for pid in agents]
        return [stat.rss_bytes for stat in stats if stat is not None]

    before = resident()
    deployment = bed.up("flood")
    peak = list(before)
    written = [0]

    def ready() -> bool:
        peak[:] = map(max, peak, resident())
        written.append(logged(bed))
        return deployment.status().phase == "ready"

    until(ready, "the flooding rank to come up", 200.0)
    assert max(written) > CAP_BYTES - 2 * DEFAULTS.log_segment_bytes, "it did flood"
    # The oldest segment goes when the newest is full, so that the cap holds at every moment.
    assert max(written) <= CAP_BYTES
    assert [late - early < 8 << 20 for early, late in zip(before, peak, strict=True)] == [True, True], peak
    nodes = [event for event in bed.client.recent_events(limit=1000) if event.kind == "node"]
    assert not [event for event in nodes if event.to in ("suspect", "silent", "lost")], "beats were on time"
    lines = list(bed.client.logs("flood", rank=1))
    assert any("Flooding: " in line.text for line in lines)


def logged(bed: Bed) -> int:
    """Bytes of the log files of the rank that has the most now; one may be rotated away while we look."""
    most = 0
    for folder in bed.folder.glob("state/sparkd/local/agents/*/state/ranks/*/log"):
        total = 0
        for file in folder.iterdir():
            with suppress(FileNotFoundError):
                total += file.stat().st_size
        most = max(most, total)
    return most
