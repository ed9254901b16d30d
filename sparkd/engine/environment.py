"""Environment variables that a profile may not set, each with the reason that reaches the user.

A node's owner may still set them, in the agent's `[rank.env]`, but for those that lead ranks past each other.
"""

import fnmatch
from typing import Final

_CODE: Final = "it decides which code is loaded or run; the node's owner sets it in [rank.env]"
_FABRIC: Final = "sparkd sets it for each node from its fabric"
_SECRET: Final = "a profile is shown to everyone; a node's secret belongs in its [rank.env]"  # noqa: S105 - a reason
_RENDEZVOUS: Final = "sparkd sets where and as what a rank joins"
_CACHE: Final = "compiled code is loaded from there: the agent's choice, or the node owner's in [rank.env]"

_PROXY: Final = "ranks talk to each other and to no proxy"

_DIVERTING: Final[tuple[tuple[str, str], ...]] = (
    ("*_PROXY", _PROXY),
    *((name, _RENDEZVOUS) for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")),
    *((name, _RENDEZVOUS) for name in ("MASTER_ADDR", "MASTER_PORT", "NCCL_COMM_ID", "TORCHELASTIC_*")),
    ("VLLM_DP_*", _RENDEZVOUS),
)
"""Not even a node's owner may send ranks there."""

FORBIDDEN: Final[tuple[tuple[str, str], ...]] = (
    ("LD_*", _CODE),
    ("PYTHON*", _CODE),
    ("PATH", _CODE),
    ("HOME", "the agent sets it: caches and configuration of the rank's user live there"),
    ("TMPDIR", "the agent sets it: sockets of the rank live there"),
    ("*_SOCKET_IFNAME", _FABRIC),
    *_DIVERTING,
    ("SPARKD_*", "sparkd recognises its ranks by these"),
    ("VLLM_HOST_IP", _FABRIC),
    ("VLLM_API_KEY", "write api.key instead"),
    ("VLLM_PLUGINS", _CODE),
    ("VLLM_NCCL_SO_PATH", _CODE),
    ("VLLM_RUST_FRONTEND_PATH", _CODE),
    ("VLLM_USE_RUST_FRONTEND", _CODE),
    ("VLLM_ALLOW_INSECURE_SERIALIZATION", "it lets requests run code"),
    ("VLLM_SERVER_DEV_MODE", "its endpoints run methods by name, and no API key guards them"),
    ("VLLM_PROCESS_NAME_PREFIX", "sparkd knows a rank's essential processes by their titles"),
    ("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH", "a dead engine must end its rank"),
    ("HF_HUB_OFFLINE", "ranks run offline: every node serves the files that were compared"),
    ("*_TOKEN", _SECRET),
    ("*_SECRET", _SECRET),
    ("*_PASSWORD", _SECRET),
    ("*_API_KEY", _SECRET),
    ("*_SECRET_ACCESS_KEY", _SECRET),
    # Shells, interpreters and the C library.
    ("BASH_ENV", _CODE),
    ("ENV", _CODE),
    ("SHELLOPTS", _CODE),
    ("PERL5*", _CODE),
    ("NODE_OPTIONS", _CODE),
    ("GCONV_PATH", _CODE),
    ("LOCPATH", _CODE),
    ("OPENSSL_*", _CODE),
    # Compilers, which kernels are made with at run time, and what they load.
    ("CC", _CODE),
    ("CXX", _CODE),
    ("*CFLAGS", _CODE),
    ("*CXXFLAGS", _CODE),
    ("*LDFLAGS", _CODE),
    ("CUDAHOSTCXX", _CODE),
    ("CUDA_HOME", _CODE),
    ("CUDA_PATH", _CODE),
    ("NVCC*", _CODE),
    ("*_NVCC", _CODE),
    ("GCC_EXEC_PREFIX", _CODE),
    ("COMPILER_PATH", _CODE),
    ("LIBRARY_PATH", _CODE),
    ("*CPATH", _CODE),
    ("*_INCLUDE_PATH", _CODE),
    ("*_PTXAS_PATH", _CODE),
    ("TRITON_*_PATH*", _CODE),
    ("TRITON_CACHE_MANAGER", _CODE),
    ("TRITON_*_BACKEND", _CODE),
    ("LLVM_*", _CODE),
    # Libraries that are opened by name.
    ("*_SO_PATH", _CODE),
    ("*_LIBRARY", _CODE),
    ("*_LIBRARIES", _CODE),
    ("*_LIB_PATH", _CODE),
    ("*_INJECTION*_PATH", _CODE),
    ("*_MODULE_DIR", _CODE),
    ("NCCL_*_PLUGIN", _CODE),
    ("NCCL_CONF_FILE", _CODE),
    ("VLLM_CUDA_COMPATIBILITY_PATH", _CODE),
    ("VLLM_LOGGING_CONFIG_PATH", _CODE),
    # Folders of compiled kernels and downloaded modules.
    ("*_CACHE_DIR", _CACHE),
    ("*_CACHE_PATH", _CACHE),
    ("*_CACHE_ROOT", _CACHE),
    ("*_CACHE_HOME", _CACHE),
    ("*_MODULES_CACHE", _CACHE),
    ("*_HUB_CACHE", _CACHE),
    ("XDG_*", _CACHE),
    ("HF_HOME", _CACHE),
    ("TORCH_HOME", _CACHE),
    ("TORCH_EXTENSIONS_DIR", _CACHE),
    ("TRITON_HOME", _CACHE),
    ("TRITON_*_DIR", _CACHE),
    ("FLASHINFER_*_DIR", _CACHE),
    ("FLASHINFER_*_BASE", _CACHE),
    ("VLLM_CONFIG_ROOT", _CACHE),
    # Ways around what was checked.
    ("VLLM_MODEL_REDIRECT_PATH", "write model.path, or model.id and model.revision, instead"),
    ("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "its endpoints load files by name that no node has compared"),
)
"""Patterns are compared in upper case: programs read `http_proxy` as well as `HTTP_PROXY`."""

_HARMLESS: Final = {("NCCL_*_PLUGIN", "none")}
"""Recipes for Sparks switch NCCL's network plug-in off; that loads nothing."""


def env_refusal(name: str, value: str) -> str | None:
    """Why a profile may not set this variable; None if it may."""
    upper = name.upper()
    for pattern, reason in FORBIDDEN:
        if fnmatch.fnmatchcase(upper, pattern) and (pattern, value) not in _HARMLESS:
            return reason
    return None


def diverts(name: str) -> str | None:
    """Why a variable is kept from ranks even if a node's owner sets it; None if it is not.

    Ranks talk to each other at addresses that were chosen for them: this would lead them elsewhere.
    """
    upper = name.upper()
    return next((reason for pattern, reason in _DIVERTING if fnmatch.fnmatchcase(upper, pattern)), None)


def is_secret_name(name: str) -> bool:
    """Whether a variable's value must not be shown, by its name."""
    upper = name.upper()
    return any(reason is _SECRET and fnmatch.fnmatchcase(upper, pattern) for pattern, reason in FORBIDDEN)
