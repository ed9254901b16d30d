"""What goes to strangers tells neither secrets nor what users said."""

import json

import pytest

from sparkd.diagnosis.redact import redacted, redacted_text


@pytest.mark.parametrize(
    "line",
    [
        "vllm serve /m --api-key abc123XYZ --port 8100",
        "vllm serve /m --api-key=abc123XYZ",
        "VLLM_API_KEY=abc123XYZ HF_HUB_OFFLINE=1",
        "non-default args: {'api_key': ['abc123XYZ'], 'port': 8100}",
        "non-default args: {'api_key': ['first', 'abc123XYZ'], 'port': 8100}",
        "non-default args: {'api_key': 'abc123XYZ', 'port': 8100}",
        "Namespace(api_key=('abc123XYZ',), port=8100)",
        "argv ['vllm', 'serve', '--api-key', 'abc123XYZ', '--port', '8100']",
        '["--hf-token","abc123XYZ"]',
        "'--api-key' 'abc123XYZ'",
        r'{"body": "{\"api_key\": \"abc123XYZ\"}"}',
        r'{"body": "{\"api_key\": [\"abc123XYZ\"]}"}',
        r'{"headers": "{\"authorization\": \"Bearer abc123XYZ\"}"}',
        r'{"body": "{\"messages\": [{\"role\": \"user\", \"content\": \"abc123XYZ\"}]}"}',
        '{"hf_token": "abc123XYZ"}',
        "Authorization: Bearer abc123XYZ",
        'headers={"authorization": "Bearer abc123XYZ"}',
        "HF_TOKEN: abc123XYZ",
        "using hf_abc123XYZabcdefgh to download",
        "sk-abc123XYZabcdefgh was refused",
        "https://ann:abc123XYZ@registry.example/v2/",
        "password=abc123XYZ",
        "Received request cmpl-1: prompt: 'abc123XYZ', params: SamplingParams(n=1)",
        'POST body {"messages": [{"role": "user", "content": "abc123XYZ"}]}',
        "Generated response chatcmpl-7: output: 'abc123XYZ'",
        "Dumping input data: prompt_token_ids=[1, 2], abc123XYZ",
    ],
)
def test_it_is_hidden(line: str) -> None:
    assert "abc123XYZ" not in redacted_text(line), redacted_text(line)


@pytest.mark.parametrize(
    "line",
    [
        "Avg prompt throughput: 12.0 tokens/s, Avg generation throughput: 3.0 tokens/s, Running: 1 reqs",
        "GPU KV cache size: 10,384 tokens, Maximum concurrency for 512 tokens per request: 20.28x",
        "ValueError: Free memory on device cuda:0 (74.9/121.69 GiB) on startup is less than desired",
        "torch.distributed.DistNetworkError: The server socket has failed to listen: EADDRINUSE",
        "max_num_batched_tokens=8192",
        "non-default args: {'api_key': None, 'stop_token_ids': [1, 2], 'port': 8100}",
        "argv ['vllm', 'serve', '--tokenizer', '/models/big', '--max-num-batched-tokens', '8192']",
        "http://10.0.0.1:8100/v1",
        "Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor.",
    ],
)
def test_what_explains_a_fall_stays(line: str) -> None:
    assert redacted_text(line) == line


def test_what_stands_beside_a_secret_stays() -> None:
    line = "args: {'api_key': ['abc123XYZ'], 'port': 8100} of ['--api-key', 'abc123XYZ', '--port', '8100']"
    told = "args: {'api_key': [hidden], 'port': 8100} of ['--api-key', '[hidden]', '--port', '8100']"
    assert redacted_text(line) == told
    assert redacted_text(told) == told


def test_keys_that_name_a_secret_or_a_prompt() -> None:
    profile = {
        "env": {"MY_SECRET": "abc123XYZ", "NCCL_DEBUG": "INFO"},
        "ready": {"canaries": [{"messages": [{"role": "user", "content": "abc123XYZ"}], "max_tokens": 64}]},
        "endpoint": {"key_file": "/var/lib/sparkd/keys/tiny"},
    }
    profile["engine"] = {
        "api_key": ["abc123XYZ"],
        "argv": ["serve", "--api-key", "abc123XYZ", "--port", "8100"],
    }
    told = json.dumps(redacted(profile))
    assert "abc123XYZ" not in told
    assert '"--port", "8100"' in told
    assert "NCCL_DEBUG" in told
    assert "/var/lib/sparkd/keys/tiny" in told
    assert '"max_tokens": 64' in told
