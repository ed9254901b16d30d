"""Facts of a `--local` set: N nodes on this machine's loopback. Nothing is started, nothing has to exist."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from sparkd.errors import UsageError
from sparkd.records.report import EngineFacts, NodeFacts

MAX_LOCAL_NODES = 250
"""Each has a loopback address of its own, 127.0.0.1 to 127.0.0.250."""


def local_node_facts(count: int, engine: Path, model_roots: Sequence[Path]) -> tuple[NodeFacts, ...]:
    """Nodes `local-1` … `local-N`; ranks meet on 127.0.0.1 … 127.0.0.N, all APIs are on 127.0.0.1.

    `engine` is a Python with vLLM, or its virtual environment. Raises UsageError for a count outside 1-250.
    """
    if not 1 <= count <= MAX_LOCAL_NODES:
        raise UsageError(f"--local {count}: between 1 and {MAX_LOCAL_NODES} nodes")
    python = engine_python(engine)
    facts = EngineFacts("default", engine_command(python), engine_version(python))
    return tuple(
        NodeFacts(
            id=f"local-{number}",
            name=f"local-{number}",
            address="127.0.0.1",
            fabric_address=f"127.0.0.{number}",
            fabric_interface="lo",
            engines=(facts,),
            model_roots=tuple(str(root) for root in model_roots),
            local=True,
        )
        for number in range(1, count + 1)
    )


def engine_command(python: Path) -> tuple[str, ...]:
    """How vLLM is started: by its interpreter, so no shell and no script with a shebang is in between."""
    return (str(python), "-m", "vllm.entrypoints.cli.main")


def engine_version(python: Path) -> str | None:
    """The version in the metadata of vLLM (`0.32.0+cpu`); None when it is not installed there."""
    found = sorted(python.parent.parent.glob("lib/python3*/site-packages/vllm-*.dist-info"))
    return found[0].name.removeprefix("vllm-").removesuffix(".dist-info") if found else None


def local_engine(environ: Mapping[str, str], folder: Path) -> Path:
    """The engine of local sets: SPARKD_ENGINE, else `.venv-vllm` in the folder."""
    return Path(os.path.abspath(folder / (environ.get("SPARKD_ENGINE") or ".venv-vllm")))  # noqa: PTH100 - a link stays one


def local_model_roots(environ: Mapping[str, str], folder: Path) -> tuple[Path, ...]:
    """The model roots of local sets: SPARKD_MODELS (folders joined by `:`), else `.models` in the folder."""
    named = [part for part in environ.get("SPARKD_MODELS", "").split(os.pathsep) if part]
    return tuple(Path(os.path.abspath(folder / part)) for part in named or (".models",))  # noqa: PTH100 - a link stays one


def engine_python(engine: Path) -> Path:
    """The interpreter of a virtual environment that may not exist yet; a path to a file is one itself."""
    return engine if engine.is_file() else engine / "bin" / "python"
