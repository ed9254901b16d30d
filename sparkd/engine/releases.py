"""What each release of vLLM has: flags and variables that came or went, and what to write instead.

vLLM refuses to start with a flag that it does not know, and passes over a variable that it does not know with
a warning in its log: a setting that a recipe relies on is then off without anybody noticing.
"""

import difflib
from typing import Final

from sparkd.engine.release_table import FLAGS, RELEASES, VARIABLES
from sparkd.engine.versions import VersionRange, release_of

REPLACEMENTS: Final[dict[str, str]] = {
    "calculate-kv-scales": "leave it out: KV scales are the checkpoint's, else 1.0",
    "enable-bf16x3-router-gemm": "leave it out: it was for SM100 only",
    "enable-mamba-fine-grained-prefix-cache": "write enable-mamba-shared-prefix-checkpoint",
    "max-long-partial-prefills": "leave it out; long-prefill-token-threshold still bounds a long prefill",
    "max-num-partial-prefills": "leave it out; long-prefill-token-threshold still bounds a long prefill",
    "override-attention-dtype": "leave it out: it was for ROCm only",
    "VLLM_ATTENTION_BACKEND": "write the argument attention-backend",
    "VLLM_ENGINE_ITERATION_TIMEOUT_S": "write VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS",
    "VLLM_FLASHINFER_MOE_BACKEND": "write the argument moe-backend (throughput is flashinfer_cutlass, "
    "latency flashinfer_trtllm)",
    "VLLM_FLASHINFER_ALLREDUCE_FUSION_THRESHOLDS_MB": "write the argument compilation-config with "
    "pass_config.fi_allreduce_fusion_max_size_mb",
    "VLLM_MM_HASHER_ALGORITHM": "write the argument mm-hasher-algorithm",
    "VLLM_MXFP4_USE_MARLIN": "write the argument moe-backend: marlin, or linear-backend: marlin",
    "VLLM_NVFP4_GEMM_BACKEND": "write the argument linear-backend (flashinfer-cutlass is flashinfer_cutlass)",
    "VLLM_PREFIX_CACHE_RETENTION_INTERVAL": "write the argument prefix-cache-retention-interval",
    "VLLM_RPC_TIMEOUT": "leave it out: ranks of one gang do not use it",
    "VLLM_TEST_FORCE_FP8_MARLIN": "write the argument moe-backend: marlin, or linear-backend: marlin",
    "VLLM_TRITON_ATTN_USE_TD": "write VLLM_TRITON_USE_TD",
    "VLLM_USE_FBGEMM": "write the argument linear-backend: fbgemm",
    "VLLM_USE_FLASHINFER_MOE_FP16": "write the argument moe-backend",
    "VLLM_USE_FLASHINFER_MOE_FP4": "write the argument moe-backend",
    "VLLM_USE_FLASHINFER_MOE_FP8": "write the argument moe-backend",
    "VLLM_USE_FLASHINFER_MOE_MXFP4_BF16": "write the argument moe-backend",
    "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8": "write the argument moe-backend: flashinfer_trtllm",
    "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS": "write the argument moe-backend: flashinfer_cutlass",
    "VLLM_USE_NVFP4_CT_EMULATIONS": "write the argument linear-backend: emulation",
    "VLLM_USE_RAY_COMPILED_DAG_CHANNEL_TYPE": "leave it out: sparkd does not use Ray",
    "VLLM_USE_RAY_COMPILED_DAG_OVERLAP_COMM": "leave it out: sparkd does not use Ray",
    "VLLM_USE_RAY_V2_EXECUTOR_BACKEND": "leave it out: sparkd does not use Ray",
    "VLLM_USE_RAY_WRAPPED_PP_COMM": "leave it out: sparkd does not use Ray",
    "VLLM_USE_V1": "leave it out: there is no other engine any more",
}
"""Flags (canonical) and variables that are gone, and what does their work now.

From the deprecation notes of the last release that had them; those that `VARIABLES` does not list were gone
before 0.23.
"""

_EVERY: Final = (RELEASES[0], RELEASES[-1])
_NONE: Final = ("", "")


def stated(vllm: VersionRange) -> tuple[str, ...]:
    """The releases (`0.24`) that a profile's range admits, as far as sparkd knows them."""
    return tuple(release for release in RELEASES[1:] if vllm.admits(release))


def flag_gone(name: str, vllm: VersionRange) -> str | None:
    """Why a profile for these versions may not have this flag; None if it may, or nobody knows the flag."""
    return _gone(f"--{name}", FLAGS.get(name, _EVERY), vllm, REPLACEMENTS.get(name))


def variable_gone(name: str, vllm: VersionRange) -> str | None:
    """As `flag_gone`, for a variable of the environment."""
    instead = REPLACEMENTS.get(name)
    life = VARIABLES.get(name, _EVERY if instead is None else _NONE)
    return _gone(name, life, vllm, instead)


def flag_missing(name: str, version: str) -> bool:
    """Whether the release of this version (`0.24.0+cpu`) refuses the flag. False for what nobody knows."""
    return _missing(FLAGS.get(name, _EVERY), version)


def variable_missing(name: str, version: str) -> bool:
    return _missing(VARIABLES.get(name, _EVERY), version)


def variable_unknown(name: str) -> str | None:
    """What to tell about a `VLLM_*` variable that no known release has; None if one has it."""
    if not name.startswith("VLLM_") or name in VARIABLES:
        return None
    near = difflib.get_close_matches(name, VARIABLES, n=1, cutoff=0.9)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{name} is no variable of vLLM that sparkd knows; passed on as it is{hint}"


def _gone(shown: str, life: tuple[str, str], vllm: VersionRange, instead: str | None) -> str | None:
    releases = stated(vllm)
    first, last = (_number(release) for release in life)
    late = [release for release in releases if _number(release) > last]
    if late:
        remedy = instead or "remove it, or narrow engine.vllm"
        return f"vLLM {late[0]} has no {shown} any more, and the profile is for it; {remedy}"
    if releases and _number(releases[-1]) < first:
        return f"vLLM has {shown} from {life[0]} on, and the profile is for {releases[-1]} at most"
    return None


def _missing(life: tuple[str, str], version: str) -> bool:
    try:
        release = release_of(version)[0][:2]
    except ValueError:
        return False
    # Of a release after the last one that the table knows, nothing is known to be gone.
    newest = _number(RELEASES[-1])
    return release < _number(life[0]) or (_number(life[1]) < release and _number(life[1]) < newest)


def _number(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split(".")) if release else (0,)
