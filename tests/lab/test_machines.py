"""The lab itself: a fault that does not happen would make every test above it pass for nothing."""

import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkd_agent.procfs import ProcFs
from tests.lab.faults import clock_off, cut, disk_full, impaired, parted, pulled
from tests.lab.lab import Lab, lab
from tests.lab.network import Cable
from tests.lab.node import STATE, Node, until
from tests.lab.room import sweep
from tests.lab.tunnel import Tunnel

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def two() -> Iterator[Lab]:
    with lab(["a", "b"]) as made:
        made.boot()
        yield made


@pytest.fixture(autouse=True)
def _both_on(two: Lab) -> None:
    two.boot()


LISTEN = """
import socket
connection, _ = socket.create_server(("", {})).accept()
count = 0
while data := connection.recv(65536):
    count += len(data)
print(count)
"""
HEAR = """
import socket
one = socket.socket(type=socket.SOCK_DGRAM)
one.bind(("", 998))
one.settimeout(1.5)
print(one.recv(9))
"""
CLOCK = """
import select, time
print("clock:", time.time(), time.monotonic(), flush=True)
select.select([], [], [], 1000)
"""
HALL = """
[Service]
ExecStart=/usr/bin/python3 -m http.server --bind 127.0.0.1 996 -d /etc
[Install]
WantedBy=multi-user.target
"""


def reaches(node: Node, cable: Cable) -> bool:
    return node.run("ping", "-q", "-c", "1", "-W", "1", cable.address, ok=(0, 1, 2)).returncode == 0


def listening(node: Node, kind: str, port: int) -> None:
    until(lambda: node.run("ss", f"-Hln{kind}", "sport", "=", str(port)).stdout, f"{node.name} to listen")


def test_a_node_is_a_machine_with_systemd_and_both_networks(two: Lab) -> None:
    a, b = two["a"], two["b"]
    assert a.run("hostname").stdout == "a\n"
    assert a.run("cat", "/proc/1/comm").stdout == "systemd\n"
    assert reaches(a, b.mgmt)
    assert reaches(a, b.fabric)
    assert a.run("cat", "/etc/machine-id").stdout != b.run("cat", "/etc/machine-id").stdout
    assert a.run("test", "-w", "/sys/fs/cgroup/system.slice/cgroup.kill").returncode == 0


def test_its_disk_lasts_over_a_power_cut_its_boot_does_not(two: Lab) -> None:
    a = two["a"]
    before = a.boot_id
    assert before != two["b"].boot_id
    a.run("tee", f"{STATE}/kept", "/etc/kept", "/run/lost", feed="words")
    sleeper = subprocess.Popen(a.command("sleep", "1000"))
    a.power_off()
    assert sleeper.wait(10) != 0
    assert not a.on
    a.boot()
    assert a.boot_id != before
    assert a.read("/etc/kept") == a.read(f"{STATE}/kept") == "words"
    assert a.run("cat", f"{STATE}/kept", "/etc/kept").stdout == "wordswords"
    assert a.run("test", "-e", "/run/lost", ok=(1,)).returncode == 1


def test_shut_down_in_good_order(two: Lab) -> None:
    a = two["a"]
    a.run(
        "systemd-run",
        "--unit=witness",
        "sh",
        "-c",
        f"trap 'echo bye > {STATE}/told; exit' TERM; sleep 1000 & wait",
    )
    until(
        lambda: "witness" in a.run("systemctl", "list-units", "--plain", "witness.service").stdout,
        "the witness",
    )
    a.shut_down()
    assert a.read(f"{STATE}/told") == "bye\n"


def test_a_node_without_power_is_silent_at_once(two: Lab) -> None:
    """No reset may tell its peers that a connection is over."""
    a, b = two["a"], two["b"]
    ear = subprocess.Popen(a.command("python3", "-c", LISTEN.format(999)), stdout=subprocess.PIPE)
    listening(a, "t", 999)
    talk = f"import socket; c = socket.create_connection(('{a.mgmt.address}', 999)); c.settimeout(1)\n"
    talk += "print('in', flush=True)\ntry: print(c.recv(9))\nexcept TimeoutError: print('silence')"
    mouth = subprocess.Popen(b.command("python3", "-c", talk), stdout=subprocess.PIPE)
    assert mouth.stdout is not None
    assert mouth.stdout.readline() == b"in\n"
    a.power_off()
    assert mouth.stdout.read() == b"silence\n"
    mouth.communicate()
    ear.communicate()


def test_pulled_cable(two: Lab) -> None:
    a, b = two["a"], two["b"]
    with pulled(two.network, b.fabric):
        assert b.run("cat", f"/sys/class/net/{b.fabric.interface}/carrier").stdout == "0\n"
        assert not reaches(a, b.fabric)
        assert reaches(a, b.mgmt)
    until(lambda: reaches(a, b.fabric), "the fabric to be back")


def test_cut_is_of_one_way_and_one_pair(two: Lab) -> None:
    a, b = two["a"], two["b"]
    say = "import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('{}', 998))"
    reaches(a, b.mgmt)  # both know the other's hardware address from now on
    with cut(two.room, a.mgmt, b.mgmt):
        heard = {}
        for here, there in ((a, b), (b, a)):
            ear = subprocess.Popen(
                there.command("python3", "-c", HEAR), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            listening(there, "u", 998)
            here.run("python3", "-c", say.format(there.mgmt.address))
            heard[here.name] = ear.communicate()[0]
        assert heard == {"a": b"", "b": b"b'x'\n"}
    with parted(two.room, a.mgmt, b.mgmt):
        assert not reaches(a, b.mgmt)
        assert reaches(a, b.fabric)
    assert reaches(a, b.mgmt)


def test_loss_and_delay(two: Lab) -> None:
    a, b = two["a"], two["b"]

    def answers() -> list[float]:
        """Round trips in ms of 40 echoes."""
        said = a.run("ping", "-c", "40", "-i", "0.02", "-W", "2", b.mgmt.address, ok=(0, 1)).stdout
        return [float(line.split("time=")[1].split()[0]) for line in said.splitlines() if "time=" in line]

    with impaired(two.room, b.mgmt, loss=0.3, delay_s=0.1):
        seen = answers()
    assert 5 < len(seen) < 35
    assert min(seen) >= 200
    seen = answers()
    assert len(seen) == 40
    assert min(seen) < 50


def test_impaired_cable_carries_a_stream(two: Lab) -> None:
    """Segments that the kernel has yet to cut, and checksums that it has yet to make, arrive whole."""
    a, b = two["a"], two["b"]
    ear = subprocess.Popen(b.command("python3", "-c", LISTEN.format(997)), stdout=subprocess.PIPE)
    listening(b, "t", 997)
    with impaired(two.room, b.mgmt, loss=0.0, delay_s=0.01):
        say = f"import socket; socket.create_connection(('{b.mgmt.address}', 997)).sendall(bytes(1000000))"
        a.run("python3", "-c", say)
        assert ear.communicate(timeout=30)[0] == b"1000000\n"


def test_full_disk(two: Lab) -> None:
    a = two["a"]
    with disk_full(a):
        assert (
            "No space left"
            in a.run("dd", "if=/dev/zero", f"of={STATE}/more", "bs=1", "count=8192", ok=(1,)).stderr
        )
        a.run("tee", "/etc/other", feed="its other disk has room")
    a.run("dd", "if=/dev/zero", f"of={STATE}/more", "bs=1k", "count=1024")


def test_clock_of_a_service(two: Lab) -> None:
    a = two["a"]
    a.write("/opt/clock.py", CLOCK)
    a.write("/etc/systemd/system/clock.service", "[Service]\nExecStart=/usr/bin/python3 /opt/clock.py\n")
    with clock_off(a, "clock.service", 3600):
        line = until(lambda: re.search(r"clock: (\S+) (\S+)", a.journal("clock.service")), "its word")
        assert line is not None
        wall, monotonic = map(float, line.groups())
        assert 3500 < wall - time.time() < 3700
        assert abs(monotonic - time.monotonic()) < 60
    a.run("systemctl", "stop", "clock.service")


def test_tunnel_leads_into_a_node_over_its_boots(two: Lab) -> None:
    a = two["a"]
    a.write("/etc/systemd/system/hall.service", HALL)
    a.run("systemctl", "enable", "-q", "--now", "hall.service")
    tunnel = Tunnel(lambda: f"/proc/{a.leader}/ns/net", ("127.0.0.1", 996))

    def hostname() -> str:
        try:
            with urllib.request.urlopen(f"{tunnel.url}/hostname", timeout=5) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    try:
        assert until(hostname, "an answer") == "a\n"
        a.power_off()
        assert hostname() == ""
        a.boot()
        assert until(hostname, "an answer") == "a\n"
    finally:
        tunnel.close()


def test_ssh(two: Lab) -> None:
    """With a host key of the node's own."""
    a, b = two["a"], two["b"]
    a.run("mkdir", "-p", "/root/.ssh")
    a.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/root/.ssh/id_ed25519")
    b.write("/root/.ssh/authorized_keys", a.read("/root/.ssh/id_ed25519.pub"), 0o600)
    a.write("/root/.ssh/known_hosts", f"{b.mgmt.address} {b.read('/etc/ssh/ssh_host_ed25519_key.pub')}")
    assert a.run("ssh", "-o", "BatchMode=yes", f"root@{b.mgmt.address}", "hostname").stdout == "b\n"
    assert a.read("/etc/ssh/ssh_host_ed25519_key.pub") != b.read("/etc/ssh/ssh_host_ed25519_key.pub")


KILLED = """
import os, signal, sys
from tests.lab.lab import Lab
made = Lab(["z"])
made.boot()
print(made.room.mark, made["z"].leader, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_lab_goes_with_the_process_that_made_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    mark, leader = done.stdout.split()
    until(lambda: ProcFs().stat(int(leader)) is None, "the end of its node")
    assert sweep() == [mark]
    assert sweep() == []
    assert not list(Path("/sys/fs/cgroup").rglob(mark))


def test_the_sweep_leaves_a_living_lab_alone(two: Lab) -> None:
    sweep()
    assert two["a"].on
    assert two.room.floor.is_dir()
