"""What links should carry, on the recorded kinds of machines."""

from dataclasses import replace
from pathlib import Path

import pytest

from sparkd.fabric.capacity import link_mbit
from sparkd.fabric.choice import choose
from sparkd.records.fabric import NodeFabric
from tests.bed.fabric_trees import datacentre, half_without_address, pair, plain, switched
from tests.unit.fabric.test_choice import members


def test_both_halves_of_a_spark_share_one_cable(tmp_path: Path) -> None:
    assert link_mbit(choose(members(pair(tmp_path)))) == 200_000


def test_one_half_is_bound_by_its_lanes(tmp_path: Path) -> None:
    found = link_mbit(choose(members(half_without_address(tmp_path))))
    assert found == pytest.approx(126_030, abs=100)


def test_the_slowest_node_counts(tmp_path: Path) -> None:
    assert link_mbit(choose(members(switched(tmp_path, 3, {0: 200_000, 1: 100_000, 2: 200_000})))) == 100_000


def test_a_rank_with_one_gpu_fills_one_of_many_cards(tmp_path: Path) -> None:
    trees = [datacentre(tmp_path / str(number), number) for number in (1, 2)]
    speeds = {one.speed_mbit for one in trees[0].discovered().interfaces if one.rdma}
    assert link_mbit(choose(members(trees))) == max(speed for speed in speeds if speed)


def test_sockets_and_what_does_not_show_its_speed(tmp_path: Path) -> None:
    trees = [plain(tmp_path / str(number), number) for number in (1, 2)]
    nodes = members(trees)
    choice = choose(nodes)
    name = choice.seats[0].interface
    speed = {one.name: one.speed_mbit for one in nodes[0].fabric.interfaces}[name or ""]
    assert link_mbit(choice) == speed
    blind = replace(nodes[1], fabric=NodeFabric())
    assert link_mbit(choose((nodes[0], blind))) is None
