"""What the two ranks are: vLLM for CUDA on the one card over NCCL, or its CPU build over gloo to rehearse."""

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_QUIET: Final = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
_CPU: Final = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
}
_CARD: Final = {
    "NCCL_IB_DISABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,NET",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}
"""Of that machine and of two ranks on one card (facts: a switch that no NVLink multicast may be used on)."""
KV_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Setting:
    cuda: bool
    python: str
    """The engine's interpreter."""
    model: Path
    max_len: int

    def node_env(self, room: str) -> dict[str, str]:
        """`[rank.env]` of one node. Two ranks share a card only as two hosts, which NCCL believes."""
        if not self.cuda:
            return {}
        return {**_CARD, "NCCL_HOSTID": f"lab-{room}", "VLLM_CACHE_ROOT": "/tmp/gpu-lab/cache"}

    @property
    def up(self) -> list[str]:
        """Words of `sparkd up` and `sparkd plan`."""
        words = ["tiny", *(["--variant", "cuda"] if self.cuda else [])]
        sets = {
            "model.path": str(self.model),
            "engine.args.max-model-len": str(self.max_len),
            "api.key": "none",
            "restart.budget": "9",
            # Lanes side by side take from one memory: what another one starts with is nobody's leak.
            "memory.returned.margin_gib": "1000",
        }
        if not self.cuda:
            sets["memory.reserve_gib"] = "0"  # nothing of a machine's page cache is dropped for a rehearsal
        words += [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
        return words

    def bare_env(self, room: str, address: str, interface: str) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if key in ("PATH", "HOME", "LD_LIBRARY_PATH")}
        return {
            **kept,
            **_QUIET,
            **({} if self.cuda else _CPU),
            **self.node_env(room),
            "VLLM_HOST_IP": address,
            "GLOO_SOCKET_IFNAME": interface,
            "NCCL_SOCKET_IFNAME": f"={interface}",
        }

    def bare_argv(self, rank: int, head: str, api: int, rendezvous: int) -> list[str]:
        own = ["--host", head, "--port", str(api)] if rank == 0 else ["--headless"]
        card = ["--gpu-memory-utilization", "0.05", "--kv-cache-memory-bytes", str(KV_BYTES)]
        card = [*card, "--disable-custom-all-reduce"] if self.cuda else []
        return [
            *(self.python, "-m", "vllm.entrypoints.cli.main", "serve", str(self.model)),
            *("--served-model-name", "tiny", "--tensor-parallel-size", "2", "--nnodes", "2"),
            *("--node-rank", str(rank), "--master-addr", head, "--master-port", str(rendezvous)),
            *("--distributed-executor-backend", "mp", "--enforce-eager", "--dtype", "bfloat16"),
            *("--max-model-len", str(self.max_len), "--max-num-seqs", "4"),
            *card,
            *own,
        ]


def engine_of(site: Path, folder: Path, also: Sequence[Path]) -> str:
    """A venv made by hand: the packages of `site` before this interpreter's own, those of `also` last."""
    own = Path(sys.executable)
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "bin").mkdir(parents=True)
    packages = folder / "lib" / f"python3.{sys.version_info.minor}"
    packages.mkdir(parents=True)
    (packages / "site-packages").symlink_to(site)
    python = folder / "bin" / "python3"
    python.symlink_to(own.resolve())
    version = ".".join(map(str, sys.version_info[:3]))
    told = f"home = {own.resolve().parent}\ninclude-system-site-packages = true\nversion = {version}\n"
    (folder / "pyvenv.cfg").write_text(told)
    # A venv of a venv sees the system's packages only; a line in a .pth file adds those of this one.
    own_packages = [p for p in sys.path if p.endswith("-packages") and Path(p).is_dir() and Path(p) != site]
    (site / "gpu-lab.pth").write_text("".join(f"{path}\n" for path in (*own_packages, *also)))
    return str(python)
