"""The systemd runtime and the units on real systemd, with control groups of version 2 (a Spark's) and 1."""

import re
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.bed.ranks import RUNTIME_VARIABLE
from tests.lab.lab import Lab
from tests.lab.node import STATE, Node, until

ROOT = Path(__file__).parents[2]
SOURCE = "/opt/source"
DEPS = "/opt/deps"
UNITS = ("sparkd-agent.service", "sparkd-coordinator.service")
PATHS = f"{SOURCE}:{SOURCE}/agents:{DEPS}"

AGENT = f"""#!/usr/bin/python3 -I
import sys

sys.path[:0] = {PATHS.split(":")}
from sparkd_agent.__main__ import main

sys.exit(main())
"""
CONFIG = f"""
[node]
id = "n1"
name = "n1"
address = "127.0.0.1"
[coordinator]
urls = ["http://127.0.0.1:7071"]
token_file = "/etc/sparkd/token"
holder = "nobody"
[state]
dir = "{STATE}/agent"
socket = "/run/sparkd/agent/agent.sock"
[rank]
user = "nobody"
"""
"""Its coordinator is nowhere."""

START_RANK = f"""
import asyncio, sys
from sparkd_agent.runtime.base import make_launch
from sparkd_agent.runtime.systemd import SystemdRuntime
from tests.bed.ranks import rank_spec

spec = rank_spec(sys.argv[1], "-c", sys.argv[2])
launch = make_launch(spec, ("/bin/sh",), agent_env={{}}, rank_env={{}}, cwd="/")
asyncio.run(SystemdRuntime("{STATE}/agent/ranks").start(spec, launch))
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[Lab]:
    made = Lab(["v2", "v1"], {ROOT: SOURCE, Path(sysconfig.get_paths()["purelib"]): DEPS})
    try:
        made["v1"].has_cgroup_v2 = False
        made.boot()
        yield made
    finally:
        made.close()


def run_tests(node: Node, *paths: str, choose: str = "") -> str:
    """Run tests there, with ranks as units; the last line that pytest says."""
    environment = [f"PYTHONPATH={PATHS}", "PYTHONDONTWRITEBYTECODE=1", f"{RUNTIME_VARIABLE}=systemd"]
    options = [f"--rootdir={SOURCE}", f"--config-file={SOURCE}/pyproject.toml", "-p", "no:cacheprovider"]
    command = ["env", *environment, "python3", "-m", "pytest", "-q", *options, "-k", choose]
    done = node.run(*command, *(f"{SOURCE}/{path}" for path in paths), ok=(0, 1), timeout_s=300)
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout.splitlines()[-1]


SUPERVISED = (
    "tests/contract/test_supervisor.py",
    "tests/contract/test_shim.py",
    "tests/contract/test_exits.py",
)


@pytest.mark.timeout(400)
def test_what_holds_for_every_rank_holds_for_units(nodes: Lab) -> None:
    """The tests of supervisor and shim, word for word, on a machine where each rank is a unit."""
    said = run_tests(nodes["v2"], *SUPERVISED)
    assert int(re.match(r"(\d+) passed", said)[1]) > 40, said  # type: ignore[index] - else the test fails


@pytest.mark.timeout(400)
def test_an_agent_that_dies_while_it_starts_or_ends_a_unit(nodes: Lab) -> None:
    """Between any two durable steps: the unit is started once, adopted, and its end is told truly."""
    steps = "agent.4- or agent.5- or agent.6- or agent.7- or agent.8- or agent.12- or agent.13- or agent.23-"
    run_tests(nodes["v2"], "tests/contract/test_failpoints.py", choose=steps)


@pytest.mark.timeout(400)
def test_what_only_units_have(nodes: Lab) -> None:
    run_tests(nodes["v2"], "tests/lab/inside/rank_units.py")


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("paths", "choose"),
    [
        # In a container systemd hears of no empty group of version 1: a unit whose shim was killed keeps its
        # name for 20 s, and these tests use one name. So a choice of those that spare the shim.
        (
            ("tests/lab/inside/rank_units.py",),
            "witness or before_anything or shared or secrets or group or bus",
        ),
        (("tests/contract/test_supervisor.py",), "breeds or behind or unasked or zombies or worker"),
    ],
    ids=["units", "supervisor"],
)
def test_version_1_of_control_groups(nodes: Lab, paths: Sequence[str], choose: str) -> None:
    node = nodes["v1"]
    assert node.run("test", "-e", "/sys/fs/cgroup/systemd/cgroup.kill", ok=(1,)).returncode == 1
    run_tests(node, *paths, choose=choose)


# The units.


@pytest.fixture(scope="module")
def with_units(nodes: Lab) -> Node:
    """Both unit files, and an agent whose coordinator is nowhere."""
    node = nodes["v2"]
    for name in UNITS:
        node.write(f"/etc/systemd/system/{name}", (ROOT / "agents" / "systemd" / name).read_text())
    node.write("/opt/sparkd/current/bin/sparkd-agent", AGENT, 0o755)
    node.write("/usr/local/bin/sparkd", "#!/bin/true\n", 0o755)
    node.write("/etc/sparkd/agent.toml", CONFIG, 0o600)
    node.write("/etc/sparkd/token", "token", 0o600)
    node.run("systemctl", "daemon-reload")
    return node


def shown(node: Node, *properties: str, unit: str = UNITS[0]) -> list[str]:
    words = [f"--property={one}" for one in properties]
    lines = node.run("systemctl", "show", unit, *words).stdout.splitlines()
    values = dict(line.split("=", 1) for line in lines)
    return [values[one] for one in properties]


def test_systemd_has_nothing_to_say_against_them(with_units: Node) -> None:
    for name in UNITS:
        said = with_units.run("systemd-analyze", "verify", f"/etc/systemd/system/{name}")
        assert said.stdout + said.stderr == ""


def test_their_exposure_is_as_documented(with_units: Node) -> None:
    told = dict(
        re.findall(r"\| `(sparkd-\w+\.service)` \| ([\d.]+) \|", (ROOT / "docs/units.md").read_text())
    )
    for name in UNITS:
        said = with_units.run("systemd-analyze", "security", "--no-pager", name).stdout
        (score,) = re.findall(rf"Overall exposure level for {name}: ([\d.]+)", said)
        assert told[name] == score


def test_a_node_is_up_without_its_coordinator(with_units: Node) -> None:
    """`start` comes back when the agent has said that it is ready."""
    with_units.run("systemctl", "start", UNITS[0])
    until(lambda: "cannot be reached" in shown(with_units, "StatusText")[0], "its word")
    active, restarts = shown(with_units, "ActiveState", "NRestarts")
    assert (active, restarts) == ("active", "0")
    local = with_units.run("/opt/sparkd/current/bin/sparkd-agent", "status").stdout
    assert "127.0.0.1:7071 cannot be reached" in local


def test_it_has_the_capabilities_that_the_watch_needs_and_no_other(with_units: Node) -> None:
    with_units.run("systemctl", "start", UNITS[0])
    (pid,) = shown(with_units, "MainPID")
    status = with_units.run("cat", f"/proc/{pid}/status").stdout
    (held,) = re.findall(r"^CapEff:\s+(\w+)$", status, re.MULTILINE)
    named = {1: "dac_override", 5: "kill", 14: "ipc_lock", 19: "sys_ptrace", 24: "sys_resource", 34: "syslog"}
    found = {named.get(bit, str(bit)) for bit in range(64) if int(held, 16) >> bit & 1}
    # A machine that is itself without one has none to give.
    assert found <= set(named.values())
    assert {"dac_override", "kill", "sys_ptrace", "ipc_lock", "syslog"} <= found


def test_an_agent_that_stands_still_is_started_anew(with_units: Node) -> None:
    with_units.run("systemctl", "restart", UNITS[0])
    (before,) = shown(with_units, "MainPID")
    with_units.run("kill", "-STOP", before)
    until(lambda: shown(with_units, "NRestarts") == ["1"], "the watchdog", timeout_s=40)
    until(lambda: shown(with_units, "ActiveState") == ["active"], "the next agent")
    assert shown(with_units, "MainPID") != [before]
    assert "Watchdog timeout" in with_units.journal(UNITS[0])


def test_when_the_machine_goes_down_the_agent_goes_before_the_ranks(with_units: Node) -> None:
    """Else it would report as a fall what is none."""
    trace = f"{STATE}/agent/order"  # nothing else of the disk may the unit write to
    stop = f"[Service]\nExecStopPost=/bin/sh -c 'echo agent >> {trace}'\n"
    with_units.write(f"/etc/systemd/system/{UNITS[0]}.d/trace.conf", stop)
    with_units.run("systemctl", "daemon-reload")
    with_units.run("systemctl", "restart", UNITS[0])
    rank = f"trap 'echo rank >> {trace}; exit' TERM; echo up > {trace}; sleep 1000 & wait"
    start = ["env", f"PYTHONPATH={PATHS}", "python3", "-c", START_RANK, "sparkd-t-g1-r0", rank]
    with_units.run(*start)
    until(lambda: with_units.at(trace).exists() and with_units.read(trace) == "up\n", "the rank")
    with_units.shut_down()
    assert with_units.read(trace) == "up\nagent\nrank\n"
    with_units.boot()
