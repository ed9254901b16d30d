"""One machine of the lab: its power, its disk, and commands on it.

Its root file system is the image below a layer of its own, which lasts over power cycles as a disk does. So
does /var/lib/sparkd, a file system of its own and small enough to be filled. Each boot has a boot id of its
own (systemd-nspawn sees to that), and control groups are version 2, without controllers.
"""

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from sparkd_agent.procfs import ProcFs
from tests.lab.network import Cable, Network
from tests.lab.room import FLOOR, PATIENCE_S, Room, children

T = TypeVar("T")
STATE: Final = "/var/lib/sparkd"
STATE_DISK: Final = "256m"
AGENT_CAPABILITIES: Final = "CAP_IPC_LOCK,CAP_SYS_RESOURCE,CAP_SYSLOG"
"""What an agent keeps and systemd-nspawn would take from all of a node."""
_ENV: Final = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}
_PROC: Final = ProcFs()


def until(look: Callable[[], T], what: str, timeout_s: float = PATIENCE_S) -> T:
    """Poll until `look()` is true; give what it gave."""
    end = time.monotonic() + timeout_s
    while not (seen := look()):
        assert time.monotonic() < end, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.02)
    return seen


class Node:
    """Made without power. `shared` maps folders of this machine to where the node sees them, read-only."""

    def __init__(
        self, room: Room, network: Network, *, name: str, number: int, image: Path, shared: dict[Path, str]
    ) -> None:
        self.name = name
        self.mgmt = Cable("mgmt", name, number)
        self.fabric = Cable("fabric", name, number)
        self._room = room
        self._network = network
        self._shared = shared
        self.has_cgroup_v2 = True
        """At its next boot: as on a Spark, also where the machine itself still has version 1."""
        self._nspawn: subprocess.Popen[bytes] | None = None
        self._leader = 0
        self.folder = room.floor / name
        self.disk = self.folder / "root"
        """Its root file system as seen from here, with or without power; nothing is mounted below it."""
        inside = FLOOR / name
        for part in ("upper", "work", "root", "state"):
            (self.folder / part).mkdir(parents=True)
        layers = f"lowerdir={image},upperdir={inside}/upper,workdir={inside}/work"
        room.run("mount", "-t", "overlay", "-o", layers, "overlay", f"{inside}/root")
        room.run("mount", "-t", "tmpfs", "-o", f"size={STATE_DISK},mode=755", "state", f"{inside}/state")
        self._set_up()

    @property
    def cables(self) -> tuple[Cable, Cable]:
        return self.mgmt, self.fabric

    def _set_up(self) -> None:
        self.write("/etc/hostname", f"{self.name}\n")
        self.write("/etc/machine-id", f"{secrets.token_hex(16)}\n", 0o444)
        for cable in self.cables:
            self.write(
                f"/etc/systemd/network/{cable.net}.network",
                f"[Match]\nName={cable.interface}\n[Network]\nAddress={cable.address}/24\n",
            )
        key = self.disk / "etc/ssh/ssh_host_ed25519_key"
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self.name, "-f", key], check=True
        )

    # Power.

    @property
    def on(self) -> bool:
        return self._nspawn is not None and self._nspawn.poll() is None

    def power_on(self) -> None:
        """Press the button; `wait_up` waits for the boot."""
        assert not self.on, f"{self.name} runs already"
        for cable in self.cables:
            self._network.unplug(cable)
            self._network.plug(cable)
        binds = [f"--bind-ro={place}:{there}" for place, there in self._shared.items()]
        command = [
            *("systemd-nspawn", "--quiet", "--boot", "--register=no", "--keep-unit", "--link-journal=no"),
            *(f"--machine={self.name}", f"--directory={FLOOR}/{self.name}/root", "--console=pipe"),
            *(f"--network-interface={cable.interface}" for cable in self.cables),
            f"--capability={AGENT_CAPABILITIES}",
            *("--resolv-conf=off", "--timezone=off", f"--bind={FLOOR}/{self.name}/state:{STATE}", *binds),
        ]
        with (self.folder / "console.log").open("ab") as console:
            env = {**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1" if self.has_cgroup_v2 else "0"}
            self._nspawn = self._room.start(self.name, command, console, env)
        self._leader = 0

    def wait_up(self) -> None:
        """Until systemd has nothing more to start; a unit that failed is an AssertionError with its name."""
        until(lambda: self._find_leader() or not self.on, f"{self.name} to start")
        assert self.on, f"{self.name} did not boot: {self.console()[-2000:]}"
        until(
            lambda: self.run("test", "-S", "/run/dbus/system_bus_socket", ok=(0, 1)).returncode == 0,
            "its bus",
        )
        state = self.run("systemctl", "is-system-running", "--wait", ok=(0, 1)).stdout.strip()
        failed = self.run("systemctl", "--failed", "--plain", "--no-legend").stdout.strip()
        assert state == "running", f"{self.name} is {state}: {failed}"

    def boot(self) -> None:
        self.power_on()
        self.wait_up()

    def power_off(self) -> None:
        """As by the plug: not a packet more leaves it, no process gets a signal that it could handle."""
        for cable in self.cables:
            self._network.carrier(cable, up=False)
        os.kill(self.leader, signal.SIGKILL)
        self.wait_off()

    def shut_down(self) -> None:
        """In good order, as `systemctl poweroff` does."""
        self.run("systemctl", "poweroff", "--no-block")
        self.wait_off()

    def reboot(self) -> None:
        self.shut_down()
        self.boot()

    def wait_off(self) -> None:
        if self._nspawn is not None:
            self._nspawn.wait(PATIENCE_S)

    @property
    def leader(self) -> int:
        """The pid, here, of its PID 1."""
        assert self.on, f"{self.name} has no power"
        return until(self._find_leader, f"PID 1 of {self.name}")

    def _find_leader(self) -> int:
        """Below nsenter and nspawn there is one process that is 1 in a process namespace of its own."""
        assert self._nspawn is not None
        if not self._leader:
            seen, below = [self._nspawn.pid], []
            while seen:
                below += seen
                seen = [child for pid in seen for child in children(pid)]
            self._leader = next((pid for pid in below if _depth(pid) == (3, 1)), 0)
        return self._leader

    @property
    def boot_id(self) -> str:
        return self.run("cat", "/proc/sys/kernel/random/boot_id").stdout.strip()

    def console(self) -> str:
        return (self.folder / "console.log").read_text(errors="replace")

    # Disk. A path is the node's; it must not lead through a symbolic link with an absolute target.

    def at(self, path: str) -> Path:
        if path == STATE or path.startswith(f"{STATE}/"):
            return self.folder / "state" / path[len(STATE) :].lstrip("/")
        return self.disk / path.lstrip("/")

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        there = self.at(path)
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_text(text)
        there.chmod(mode)

    def read(self, path: str) -> str:
        return self.at(path).read_text()

    # Commands.

    def command(self, *argv: str) -> list[str]:
        """What to execute here to execute `argv` there, as root."""
        return ["nsenter", f"--target={self.leader}", "--all", "--root", "--wd", "--", *argv]

    def run(
        self, *argv: str, ok: Sequence[int] = (0,), timeout_s: float = PATIENCE_S, feed: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Raises AssertionError with what it said when it exits with anything but `ok`."""
        done = subprocess.run(
            self.command(*argv),
            env=_ENV,
            input=feed,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        said = f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
        assert done.returncode in ok, f"{self.name}: {' '.join(argv)}: exit {done.returncode}: {said}"
        return done

    def journal(self, unit: str, lines: int = 200) -> str:
        return self.run(
            "journalctl", "-q", "--no-pager", "-u", unit, "-n", str(lines), "-o", "short-precise"
        ).stdout


def _depth(pid: int) -> tuple[int, int]:
    """How many process namespaces it is in, and its pid in the innermost."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except FileNotFoundError:
        return 0, 0
    pids = next((line.split()[1:] for line in lines if line.startswith("NSpid:")), ["0"])
    return len(pids), int(pids[-1])
