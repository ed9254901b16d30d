"""Facts of a `--local` set: N nodes on this machine's loopback, for trying sparkd without any node."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from sparkd.errors import EngineUnknown, UsageError
from sparkd.records.report import EngineFacts, NodeFacts

MAX_LOCAL_NODES = 16


def local_node_facts(count: int, engine: Path, model_roots: Sequence[Path]) -> tuple[NodeFacts, ...]:
    """Nodes `local-1` … on 127.0.0.1, 127.0.0.2 …; `engine` is a virtual environment with vLLM.

    Nothing is started and nothing has to exist. Raises UsageError for a count outside 1-16.
    """
    if not 1 <= count <= MAX_LOCAL_NODES:
        raise UsageError(f"--local takes 1 to {MAX_LOCAL_NODES} nodes, not {count}")
    facts = EngineFacts("default", engine_command(engine), engine_version(engine))
    return tuple(
        NodeFacts(
            id=f"local-{number}",
            name=f"local-{number}",
            address=f"127.0.0.{number}",
            fabric_address=f"127.0.0.{number}",
            fabric_interface="lo",
            engines=(facts,),
            model_roots=tuple(str(root) for root in model_roots),
            local=True,
        )
        for number in range(1, count + 1)
    )


def engine_command(engine: Path) -> tuple[str, ...]:
    """How vLLM's command line is started from a virtual environment, without a shell or a script's shebang."""
    return (str(engine / "bin" / "python"), "-m", "vllm.entrypoints.cli.main")


def engine_version(engine: Path) -> str | None:
    """vLLM's version as its metadata has it (`0.32.0+cpu`); None when it is not installed there."""
    found = sorted(engine.glob("lib/python3*/site-packages/vllm-*.dist-info"))
    return found[0].name.removeprefix("vllm-").removesuffix(".dist-info") if found else None


def local_engine(environ: Mapping[str, str] = os.environ, folder: Path | None = None) -> Path:
    """The engine of local sets: SPARKD_ENGINE, else `.venv-vllm` in the folder (default: here).

    Raises EngineUnknown when there is no Python in it.
    """
    engine = (folder or Path.cwd()) / environ.get("SPARKD_ENGINE", ".venv-vllm")
    if not (engine / "bin" / "python").exists():
        raise EngineUnknown(
            f"there is no engine in {engine}; make one with `make vllm`, or name a virtual environment "
            "with vLLM in SPARKD_ENGINE"
        )
    return engine


def local_model_roots(
    environ: Mapping[str, str] = os.environ, folder: Path | None = None
) -> tuple[Path, ...]:
    """The model roots of local sets: SPARKD_MODELS (folders joined by `:`), else `.models` in the folder."""
    here = folder or Path.cwd()
    named = [part for part in environ.get("SPARKD_MODELS", "").split(os.pathsep) if part]
    return tuple(here / part for part in named or (".models",))
