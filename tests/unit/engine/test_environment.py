import pytest

from sparkd.engine.environment import env_refusal, is_secret_name


@pytest.mark.parametrize(
    "name",
    [
        "LD_PRELOAD",
        "ld_preload",
        "PYTHONPATH",
        "PATH",
        "HOME",
        "VLLM_PLUGINS",
        "VLLM_HOST_IP",
        "VLLM_API_KEY",
        "NCCL_SOCKET_IFNAME",
        "GLOO_SOCKET_IFNAME",
        "TP_SOCKET_IFNAME",
        "http_proxy",
        "HTTPS_PROXY",
        "No_Proxy",
        "SPARKD_RANK",
        "HF_TOKEN",
        "MASTER_ADDR",
        "NCCL_TUNER_PLUGIN",
        "HF_HUB_OFFLINE",
        # Found in the sources of vLLM 0.32, torch and Triton, and in what they call.
        "VLLM_CUDART_SO_PATH",
        "VLLM_LOGGING_CONFIG_PATH",
        "VLLM_CACHE_ROOT",
        "VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR",
        "VLLM_MODEL_REDIRECT_PATH",
        "TORCHINDUCTOR_CACHE_DIR",
        "TRITON_CACHE_MANAGER",
        "TRITON_LIBCUDA_PATH",
        "TRITON_PLUGIN_PATHS",
        "TRITON_REMOTE_CACHE_BACKEND",
        "TRITON_ROCTX_LIBRARY",
        "FLASHINFER_EXTRA_CFLAGS",
        "FLASHINFER_WORKSPACE_BASE",
        "NVCC_APPEND_FLAGS",
        "PYTORCH_NVCC",
        "CUDA_INJECTION64_PATH",
        "OMP_TOOL_LIBRARIES",
        "OPENSSL_CONF",
        "HF_MODULES_CACHE",
        "NCCL_CONF_FILE",
        "GCC_EXEC_PREFIX",
        "xdg_cache_home",
    ],
)
def test_what_loads_code_or_is_sparkds_is_refused_with_a_reason(name: str) -> None:
    assert env_refusal(name, "x")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_DEBUG", "WARN"),
        ("NCCL_NET_PLUGIN", "none"),
        ("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "1800"),
        ("OMP_NUM_THREADS", "1"),
        ("TORCH_CUDA_ARCH_LIST", "12.1a"),
        ("VLLM_KV_CACHE_LAYOUT", "BLNHC"),
        ("VLLM_FLASHINFER_MOE_BACKEND", "latency"),
        ("NCCL_IB_HCA", "=rocep1s0f0"),
        ("PYTORCH_CUDA_ALLOC_CONF_X", "a"),
    ],
)
def test_the_rest_is_the_profiles(name: str, value: str) -> None:
    assert env_refusal(name, value) is None


def test_secrets_are_known_by_name() -> None:
    assert is_secret_name("HF_TOKEN")
    assert is_secret_name("some_api_key")
    assert not is_secret_name("NCCL_DEBUG")
