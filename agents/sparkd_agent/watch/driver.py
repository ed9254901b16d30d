"""Which NVIDIA driver is loaded, and which lies on disk: an update leaves them apart until a reboot."""

import re
from pathlib import Path
from typing import Final

LIBRARY: Final = "libnvidia-ml.so.1"
FOLDERS: Final = (
    Path("/usr/lib/aarch64-linux-gnu"),
    Path("/usr/lib/x86_64-linux-gnu"),
    Path("/usr/lib64"),
    Path("/usr/local/nvidia/lib64"),
)


def module_version(proc: Path = Path("/proc")) -> str | None:
    """Of the loaded kernel module."""
    try:
        text = (proc / "driver" / "nvidia" / "version").read_text()
    except OSError:
        return None
    found = re.search(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text, re.MULTILINE)
    return found[1] if found else None


def library_version(folders: tuple[Path, ...] = FOLDERS) -> str | None:
    """Of the library on disk: `libnvidia-ml.so.1` is a link to `libnvidia-ml.so.580.95.05`."""
    for folder in folders:
        target = (folder / LIBRARY).resolve()
        version = target.name.removeprefix("libnvidia-ml.so.")
        if target.is_file() and "." in version:
            return version
    return None
