"""Small files of the kernel, each with one value. What it refuses to say is None."""

from pathlib import Path


def text(path: Path) -> str | None:
    """The file's text without white space at its ends; None for what is absent, unreadable or empty."""
    try:
        return path.read_text(errors="replace").strip() or None
    except OSError:
        return None


def number(path: Path) -> float | None:
    """The first number in the file: `32.0 GT/s PCIe`, `4`, `-1`."""
    words = (text(path) or "").split()
    try:
        return float(words[0])
    except (ValueError, IndexError):
        return None


def whole(path: Path) -> int | None:
    found = number(path)
    return None if found is None else int(found)


def pcie_most(device: Path, name: str) -> float | None:
    """What both ends can do: a card with 16 lanes in a slot with four has four."""
    card = number(device / name)
    slot = number(device.resolve().parent / name)
    return card if slot is None or card is None else min(card, slot)


def names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []
