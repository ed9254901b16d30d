"""What one rank needs of its node's memory, line by line."""

from sparkd.profile.schema import Memory
from sparkd.records.defaults import GIB
from sparkd.records.plan import MemoryLine


def memory_lines(memory: Memory) -> tuple[MemoryLine, ...]:
    """The summands for one rank, zeros left out. The load spike counts: loading must end well too."""
    lines = (
        ("weights", memory.weights_gib),
        ("runtime", memory.runtime_gib),
        ("load spike", memory.load_spike_gib),
        ("reserve for the node", memory.reserve_gib),
    )
    return tuple(MemoryLine(label, round(gib * GIB)) for label, gib in lines if gib)


def need_bytes(lines: tuple[MemoryLine, ...]) -> int:
    return sum(line.bytes for line in lines)
