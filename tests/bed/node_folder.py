"""A node in a folder: an empty root below which enrolment works, a systemctl that only keeps books, a
coordinator that only signs, and wheels that hold one line each.
"""

import hashlib
import sys
import time
import zipfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from sparkd.enrol.authority import Authority, make_authority
from sparkd.enrol.enrolment import Errand, State, Wishes
from sparkd.enrol.host import Place
from sparkd.enrol.steps import Cluster
from sparkd.enrol.stock import Stock
from sparkd.errors import Conflict
from sparkd.records.defaults import DEFAULTS

_SYSTEMCTL = """#!{python}
import sys
from pathlib import Path

books = Path({books!r})
verb, unit = sys.argv[1], sys.argv[-1]
with (books / "calls").open("a") as calls:
    calls.write(" ".join(sys.argv[1:]) + "\\n")
enabled, active = books / ("enabled-" + unit), books / ("active-" + unit)
if (books / "broken").exists() and verb in ("start", "restart"):
    sys.exit("Job failed: " + (books / "broken").read_text())
if verb == "enable":
    enabled.touch()
elif verb in ("start", "restart"):
    active.touch()
elif verb in ("stop", "disable"):
    active.unlink(missing_ok=True)
    if verb == "disable":
        enabled.unlink(missing_ok=True)
elif verb == "is-active":
    print("active" if active.exists() else "inactive")
elif verb == "is-enabled":
    print("enabled" if enabled.exists() else "disabled")
"""


@dataclass
class NodeFolder:
    """`root` is what the node's / would be."""

    folder: Path

    def __post_init__(self) -> None:
        self.root = self.folder / "root"
        for name in ("run/systemd/system", "opt", "etc", "var/lib", "usr/local/bin"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        self.books = self.folder / "books"
        self.books.mkdir(exist_ok=True)
        self.systemctl = self.folder / "systemctl"
        self.systemctl.write_text(_SYSTEMCTL.format(python=sys.executable, books=str(self.books)))
        self.systemctl.chmod(0o755)

    @property
    def place(self) -> Place:
        return Place(str(self.root), str(self.systemctl), become_root=False)

    @property
    def calls(self) -> list[str]:
        """Of systemctl, those that change something."""
        file = self.books / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line for line in lines if not line.startswith("is-")]

    def snapshot(self) -> dict[str, tuple[int, str]]:
        """Every file below the root: mode and content, or where a link points."""
        found = {}
        for place in sorted(self.root.rglob("*")):
            name = str(place.relative_to(self.root))
            if place.is_symlink():
                found[name] = (0, str(place.readlink()))
            elif place.is_file() and place.suffix != ".pyc":
                found[name] = (place.stat().st_mode & 0o777, hashlib.sha256(place.read_bytes()).hexdigest())
        return found


@dataclass
class SigningCoordinator:
    """A registrar: signs for whoever asks, and hears from every node that it has signed for."""

    folder: Path
    holder: str = "holder-of-tests"
    urls: tuple[str, ...] = ()
    nodes: dict[str, str] = field(default_factory=dict)
    revoked: set[str] = field(default_factory=set)
    deaf: bool = False

    def __post_init__(self) -> None:
        self.authority: Authority = make_authority(self.folder / "ca", time.time())

    @property
    def cluster(self) -> Cluster:
        return Cluster(self.holder, self.urls, self.authority.pem, dict(self.nodes), frozenset(self.revoked))

    def enrol(self, node_id: str, name: str, csr: str) -> str:
        if self.nodes.get(node_id, name) != name or node_id in self.revoked:
            raise Conflict(f"{node_id} is not {name}")
        self.nodes[node_id] = name
        return self.authority.sign_node(csr, node_id, name, time.time())

    def is_alive(self, node_id: str) -> bool:
        return not self.deaf and node_id in self.nodes


@dataclass
class Told:
    """What a person would have read."""

    lines: list[tuple[str, str, State, str]] = field(default_factory=list)

    def __call__(self, node: str, step: str, state: State, words: str) -> None:
        self.lines.append((node, step, state, words))

    def steps(self, state: State, node: str | None = None) -> list[str]:
        return [line[1] for line in self.lines if line[2] == state and node in (None, line[0])]

    @property
    def text(self) -> str:
        return "\n".join(" ".join(line) for line in self.lines)


def make_stock(folder: Path, *, without: str = "") -> Stock:
    """A lock and its wheels, of one line each; `without` is locked but not there."""
    wheels = folder / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    lines = []
    for name in ("one", "two"):
        file = wheels / f"{name}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(zipfile.ZipInfo(f"{name}.py"), f"NAME = {name!r}\n")
        lines.append(f"{name}==1.0 --hash=sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}")
        if name == without:
            file.unlink()
    lock = folder / "lock"
    lock.write_text("\n".join(lines) + "\n")
    return Stock([wheels], folder / "cache", "[Unit]\nDescription=the agent\n", lock=lock, offline=True)


def errand(
    coordinator: SigningCoordinator, stock: Stock, told: Told, *, dry_run: bool = False, **limits: float
) -> Errand:
    wishes = Wishes(dry_run=dry_run)
    return Errand(coordinator.cluster, coordinator, stock, wishes, told, replace(DEFAULTS, **limits))
