"""The unit files that come with sparkd: in the package, or in a checkout's `agents/systemd`."""

from pathlib import Path
from typing import Final

AGENT: Final = "sparkd-agent.service"
COORDINATOR: Final = "sparkd-coordinator.service"


def unit_file(name: str) -> Path:
    package = Path(__file__).parent / "systemd"
    folder = package if package.is_dir() else Path(__file__).parents[1] / "agents" / "systemd"
    return folder / name
