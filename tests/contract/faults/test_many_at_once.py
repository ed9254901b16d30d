"""Case 18: the same request fifty times in the same moment."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from sparkd.records.answer import CommandAnswer
from tests.bed.cluster import Cluster


def test_fifty_times_up_is_one_deployment(bed: Cluster, name: str) -> None:
    intent = bed.intent()
    with ThreadPoolExecutor(50) as pool:
        answers: list[CommandAnswer] = list(pool.map(lambda _: bed.client.up(name, intent), range(50)))
    assert Counter(str(answer.outcome) for answer in answers) == {"created": 1, "running": 49}
    ready = bed.until(name, "ready", "failed")
    assert (ready.phase, ready.generation) == ("ready", 1)
    launches = [e for e in bed.client.recent_events(limit=1000, deployment=name) if e.to == "launching"]
    assert len(launches) == 1
    assert len({s.ref for s in bed.sightings() if s.leader and s.deployment == name}) == 2


def test_fifty_restarts_of_one_generation_are_one(bed: Cluster, name: str) -> None:
    bed.client.up(name, bed.intent())
    generation = bed.until(name, "ready").generation
    with ThreadPoolExecutor(50) as pool:
        list(pool.map(lambda _: bed.client.restart(name, generation), range(50)))
    assert bed.until(name, "ready", generation=generation + 1).generation == generation + 1


def test_fifty_downs_are_one(bed: Cluster, name: str) -> None:
    bed.client.up(name, bed.intent())
    bed.until(name, "ready")
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: bed.client.down(name), range(50)))
    assert {answer.deployment.desired for answer in answers} == {"down"}
    bed.until(name, "stopped")
    stops = [e for e in bed.client.recent_events(limit=1000, deployment=name) if e.to == "stopping"]
    assert len(stops) == 1
