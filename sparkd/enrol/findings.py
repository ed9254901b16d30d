"""What was found on nodes, for people: each node's means, who else uses it, and where nodes differ. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparkd.enrol.probe import FoundFabric, Probe

_LAUNCHERS = ("vllm", "ray", "sglang", "sparkrun", "trtllm", "tensorrt", "llama", "ollama")
"""What containers of other launchers are called after."""


def finding_lines(
    probes: Mapping[str, Probe], configs: Mapping[str, Mapping[str, Any]] | None = None
) -> list[str]:
    """By node name, with agent.toml where there is one; the last lines are about differences."""
    lines = []
    for name, probe in sorted(probes.items()):
        lines.append(f"{name}: {'; '.join(_means(probe))}")
        lines += [f"  note: {words}" for words in _notes(probe, (configs or {}).get(name))]
    return [*lines, *(f"note: {words}" for words in skew(probes))]


def skew(probes: Mapping[str, Probe]) -> list[str]:
    """What nodes of one gang should have in common and have not."""
    if len(probes) < 2:
        return []
    looks: dict[str, Callable[[Probe], str]] = {
        "kernel": lambda probe: probe.kernel,
        "GPU and driver": lambda probe: ", ".join(probe.gpu) or "none",
        "vLLM": lambda probe: ", ".join(sorted({engine.version for engine in probe.engines})) or "none",
        "vLLM images": lambda probe: ", ".join(probe.images) or "none",
        "fabric MTU": lambda probe: str(probe.link.mtu) if probe.link else "no fabric",
        "fabric speed": lambda probe: _speed(probe.link) if probe.link else "no fabric",
    }
    found = []
    for what, look in looks.items():
        by_value: dict[str, list[str]] = {}
        for name, probe in sorted(probes.items()):
            by_value.setdefault(look(probe), []).append(name)
        if len(by_value) > 1:
            told = "; ".join(f"{value} on {', '.join(names)}" for value, names in sorted(by_value.items()))
            found.append(f"{what} differs: {told}")
    return found


def _means(probe: Probe) -> Sequence[str]:
    engine = probe.engines[0] if probe.engines else None
    return (
        f"vLLM {engine.version} ({engine.python})" if engine else "no vLLM environment",
        f"checkpoints in {', '.join(probe.model_roots)}" if probe.model_roots else "no checkpoints",
        _fabric(probe.link) if probe.link else "no fabric",
        ", ".join(probe.gpu) or "no GPU seen",
    )


def _notes(probe: Probe, config: Mapping[str, Any] | None) -> list[str]:
    notes = []
    if config and not config.get("rank", {}).get("user"):
        notes.append("nobody is named whom ranks run as, so none will start: give `--rank-user USER`")
    if not probe.images and not (config or {}).get("engine", probe.engines):
        notes.append(
            "no engine was found: give `--engine PYTHON`, or name its python in /etc/sparkd/agent.toml "
            "([engine.default] python = …)"
        )
    if len(probe.engines) > 1:
        others = ", ".join(f"{one.python} ({one.version})" for one in probe.engines[1:])
        notes.append(f"other engines: {others}; `--engine PYTHON` takes another")
    if probe.fabric and not probe.link:
        down = ", ".join(
            f"{one.interface} {'has no address' if one.up else 'is down'}" for one in probe.fabric
        )
        notes.append(f"the fabric is not set up ({down}): ranks would meet on {probe.address}")
    if probe.gpu_owners:
        notes.append(f"the GPU is in use by {'; '.join(probe.gpu_owners)}")
    alien = [
        one for one in probe.containers if any(w in f"{one.name} {one.image}".lower() for w in _LAUNCHERS)
    ]
    if alien:
        names = ", ".join(f"{one.name} ({one.image})" for one in alien)
        notes.append(f"containers of other launchers run: {names}; two of them do not fit into one memory")
    if probe.unreachable:
        notes.append(f"not every address of the coordinator answers: {'; '.join(probe.unreachable)}")
    return notes


def _fabric(link: FoundFabric) -> str:
    mtu = f", MTU {link.mtu}" if link.mtu else ""
    return f"fabric {link.interface} {link.addresses[0]} ({_speed(link)}{mtu})"


def _speed(link: FoundFabric) -> str:
    return f"{link.speed_mbit // 1000} Gb/s" if link.speed_mbit and link.speed_mbit > 0 else "speed unknown"
