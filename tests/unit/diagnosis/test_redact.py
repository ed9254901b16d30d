"""What goes to strangers tells neither secrets nor what users said."""

import json
import shlex
import time
from collections.abc import Callable, Iterator

import pytest

from sparkd.diagnosis.redact import redacted, redacted_text


@pytest.mark.parametrize(
    "line",
    [
        "vllm serve /m --api-key abc123XYZ --port 8100",
        "vllm serve /m --api-key=abc123XYZ",
        # One flag, several values, in each of the ways that a command line is written.
        "vllm serve /m --api-key first abc123XYZ --port 8100",
        "vllm serve /m --api-key first second abc123XYZ",
        'vllm serve /m --api-key "first one" "abc123XYZ" --port 8100',
        "vllm serve /m --api-key 'first one' abc123XYZ --port 8100",
        "'--api-key' 'first' 'abc123XYZ' '--port' '8100'",
        "argv ['vllm', 'serve', '--api-key', 'first', 'abc123XYZ', '--port', '8100']",
        '["--api-key","first","abc123XYZ","--port","8100"]',
        r'{"argv": "[\"--api-key\", \"first\", \"abc123XYZ\"]"}',
        "args: [--api-key, first, abc123XYZ, --port, 8100]",
        "ExecStart=/opt/vllm serve /m --api-keys first,abc123XYZ",
        '--api-key="two words abc123XYZ" --port 8100',
        "--hf_token=abc123XYZ",
        "-api-key abc123XYZ",
        "docker run -e HF_TOKEN=abc123XYZ -e NCCL_DEBUG=INFO vllm",
        # Variables, whatever stands around the word.
        "export HF_TOKEN='two words abc123XYZ'",
        "AWS_SECRET_ACCESS_KEY=abc123XYZ",
        "AWS_ACCESS_KEY_ID=abc123XYZ",
        "DB_PASSWORD_2=abc123XYZ",
        "HF_TOKEN_2=abc123XYZ",
        "PGPASSWORD=abc123XYZ",
        "SSH_PASSPHRASE=abc123XYZ",
        "password=1234567",
        "environ({'WANDB_API_KEY': 'two words abc123XYZ', 'PATH': '/bin'})",
        "api_key: [first, abc123XYZ]",
        "docker run -e HF_TOKEN='two words abc123XYZ' vllm",
        "docker run -e HF_TOKEN=two\\ abc123XYZ vllm",
        # Who logs in.
        "curl -fsS -u ann:abc123XYZ https://h.example/f",
        "curl -U ann:abc123XYZ --url h.example",
        "curl --proxy-user=ann:abc123XYZ h.example",
        "curl -u ann:1234567 h.example",
        # Headers.
        "X-Api-Key: abc123XYZ",
        "x-auth-token: abc123XYZ",
        "Authorization: token abc123XYZ",
        "Authorization: ApiKey abc123XYZ",
        'Authorization: Digest username="ann", response="abc123XYZ"',
        "Proxy-Authorization: Basic YWJjMTIzWFla abc123XYZ",
        "Cookie: session=1; other=abc123XYZ",
        "Set-Cookie: session=abc123XYZ; HttpOnly",
        "headers=[(b'x-api-key', b'abc123XYZ'), (b'host', b'a')]",
        "('authorization', 'Bearer abc123XYZ')",
        '["x-goog-api-key", "abc123XYZ"]',
        # URLs.
        "redis://:abc123XYZ@10.0.0.1:6379/0",
        "https://ann:p@ss:abc123XYZ@registry.example/v2/",
        "https://abc123XYZ@github.example/org/repo.git",
        "https://ann:a/b/abc123XYZ@registry.example/v2/",
        "https://ann@corp.example:abc123XYZ@registry.example/v2/",
        "http_proxy=http://ann:abc123XYZ@proxy.example:3128",
        "git clone git+ssh://ann:abc123XYZ@h.example/x.git",
        "GET /v1/models?api_key=abc123XYZ&limit=3",
        "https://h.example/f?X-Amz-Signature=abc123XYZ&X-Amz-Expires=60",
        "https://h.example/f?sv=1&sig=abc123XYZ",
        "https://h.example/f?access_token=abc123XYZ",
        # What says by itself what it is.
        "login with eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhYmMxMjNYWVoifQ.abc123XYZ",
        "AKIAabc123XYZ".replace("abc123XYZ", "ABCDEFGHIJ123456") + " password: abc123XYZ",
        "-----BEGIN RSA PRIVATE KEY-----\nabc123XYZ\n-----END RSA PRIVATE KEY-----",
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
    told = redacted_text(line)
    assert "abc123XYZ" not in told, told
    assert "1234567" not in told, told
    assert "[hidden]" in told
    assert redacted_text(told) == told, "once more changes nothing"


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
        "ssh://ann@spark-3:22",
        "docker run --user 1000:1000 -u 0:0 vllm",
        "python3 -u -m vllm.entrypoints.cli.main serve /m",
        "registry http://h.example:5000/vllm@sha256:0123abcd",
        "GET http://[fe80::1]:8000/v1/models?of=a@b",
        "docker run -e 'NCCL_DEBUG=INFO' -e 'max_tokens=64' vllm",
        "GET /v1/models?limit=3&after=x",
        "max_tokens=64, eos_token_id=2, num_tokens: 12",
        "vllm: error: argument --api-key: expected at least one argument",
        "profile key_file: /var/lib/sparkd/keys/tiny",
        "HF_TOKEN_PATH=/root/.cache/huggingface/token",
        '["--max-num-batched-tokens", "8192", "--port", "8100"]',
        "rank 1 on spark-2: VLLM::Worker_TP1 (pid 812) is stopped (state T)",
        "rsync -aH --partial /models/a/ 10.78.0.3:/models/a/",
        "Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor.",
    ],
)
def test_what_explains_a_fall_stays(line: str) -> None:
    assert redacted_text(line) == line


NAMES = ("HF_TOKEN", "DB_PASSWORD_2", "AWS_SECRET_ACCESS_KEY", "x-api-key")
LOGINS = ("-u", "-U", "--user", "--proxy-user")
VALUES = ("abc123XYZ", "two abc123XYZ", "it is, abc123XYZ", "a=b abc123XYZ")


def command_lines() -> Iterator[list[str]]:
    """Every way that a secret is a word, or in a word, of a command line."""
    for value in VALUES:
        for name in NAMES:
            yield ["docker", "run", "-e", f"{name}={value}", "vllm", "--stays"]
            yield ["docker", "run", f"--env={name}={value}", "vllm", "--stays"]
            yield ["docker", "run", f"-e{name}={value}", "vllm", "--stays"]
        for flag in LOGINS:
            yield ["curl", flag, f"ann:{value}", "h.example", "--stays"]
            glued = f"{flag}=ann:{value}" if flag.startswith("--") else f"{flag}ann:{value}"
            yield ["curl", glued, "h.example", "--stays"]


def in_double_quotes(words: list[str]) -> str:
    return " ".join(f'"{word}"' if " " in word else word for word in words)


WRITERS: dict[str, Callable[[list[str]], str]] = {
    "shell": shlex.join,
    "double quotes": in_double_quotes,
    "repr": repr,
    "JSON": json.dumps,
    "JSON in JSON": lambda words: json.dumps({"argv": json.dumps(words)}),
}


@pytest.mark.parametrize("words", list(command_lines()), ids=" ".join)
def test_a_secret_with_blanks_is_hidden_however_its_command_line_is_written(words: list[str]) -> None:
    listed = redacted(words)
    assert "abc123XYZ" not in json.dumps(listed)
    assert listed[0] == words[0]
    assert listed[-1] == "--stays"
    for how, write in WRITERS.items():
        told = redacted_text(write(words))
        assert "abc123XYZ" not in told, (how, told)
        assert "--stays" in told, (how, told)
        assert redacted_text(told) == told, "once more changes nothing"


def test_a_flag_of_several_values_ends_at_the_next_flag() -> None:
    line = "serve --api-key k1abc k2abc --port 8100 --hf-token t1abc --seed 7"
    assert redacted_text(line) == "serve --api-key [hidden] --port 8100 --hf-token [hidden] --seed 7"
    words = ["serve", "--api-key", "k1abc", "k2abc", "--port", "8100"]
    assert redacted(words) == ["serve", "--api-key", "[hidden]", "[hidden]", "--port", "8100"]


def test_shapes_of_json_that_keep_a_secret_from_its_name() -> None:
    told = json.dumps(
        redacted(
            {
                "env": [{"name": "HF_TOKEN", "value": "abc123XYZ"}, {"name": "NCCL_DEBUG", "value": "INFO"}],
                "headers": [["x-api-key", "abc123XYZ"], ["accept", "text/html"]],
                "credentials": {"user": "ann", "any": ["abc123XYZ"]},
                "PASSWORD": 1234567,
                "cookie": "abc123XYZ",
                "tokens": {"prompt": 3, "generated": 12},
                "lines": ['  File "token_pool.py", line 7 in take', '  File "stays.py", line 9 in run'],
                "sets": ["engine.args.max-num-batched-tokens=8192", "engine.args.seed=7"],
                "max_tokens": 64,
                "tokenizer": "/models/big",
                "pem": "-----BEGIN PRIVATE KEY-----\nabc123XYZ\nabc123XYZ\n-----END PRIVATE KEY-----",
            }
        )
    )
    assert "abc123XYZ" not in told
    assert "1234567" not in told
    for stays in (
        "stays.py",
        "seed=7",
        "INFO",
        "text/html",
        "/models/big",
        '"generated": 12',
        '"max_tokens": 64',
        '"HF_TOKEN"',
    ):
        assert stays in told


@pytest.mark.parametrize(
    "line",
    [
        "secret" * 10_000,
        "--api-key " * 6_000,
        "'" * 60_000,
        "://" * 20_000,
        "api_key: [" * 6_000,
        "a-" * 30_000,
        "token='" * 9_000,
        "-u a:" * 12_000,
        "-u 'a:" * 10_000,
        "://a:" * 12_000,
        "'token=" * 9_000,
    ],
    ids=lambda line: line[:10],
)
def test_a_line_that_was_made_to_take_long_does_not(line: str) -> None:
    began = time.process_time()
    redacted_text(line)
    assert time.process_time() - began < 10


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
