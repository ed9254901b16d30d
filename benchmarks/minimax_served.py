"""A3 and A1 on a GPU: `sparkd up` serves a toy MiniMax-M3 through the mods, dense torch computes the same.

    export PYTHONPATH=.:agents:tests/contract/mods/inside:tests/bed
    python benchmarks/minimax_served.py write FOLDER
    SPARKD_ENGINE=VENV python benchmarks/minimax_served.py up FOLDER

`write` needs torch, safetensors and tokenizers: 3 layers (1 dense, 2 sparse), hidden 1024, experts of mixed
widths, in the form of the community checkpoint; and a profile, which is the built-in one (its arguments, its
variables, its mods) but for the sizes of the toy. `up` needs vLLM 0.24 for CUDA in VENV: 6 tokens, greedy,
after a prompt of 11, each with the log-probabilities of the first five, through the API of rank 0. The dense
weights that the checkpoint was packed from say what they ought to be, token by token. Exit code 1 if one of
them is off by more than 0.05; another likeliest token is then a tie.
"""

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import minimax_toy as toy
import torch
import yaml
from make_tiny_model import VOCABULARY, make_tokenizer
from safetensors.torch import save_file

ROOT = Path(__file__).parent.parent
NAME = "minimax-toy"
toy.HIDDEN, toy.INNER, toy.DENSE, toy.VOCABULARY = 1024, 512, 1024, VOCABULARY
LAYERS, DENSE_LAYERS = 3, 1
PROMPT = [5, 9, 77, 130, 201, 33, 8, 250, 61, 17, 90]
TOKENS = 6
TOP_K, HEAD, ROTATED = 4, 128, 64
TOLERANCE = 0.05
"""Of a log-probability: two sums in bf16 in another order."""
ARCHITECTURE = "MiniMaxM3SparseForCausalLM"
UP_S = 400
Weights = dict[str, torch.Tensor]


def write(folder: Path) -> None:
    model = folder / NAME
    model.mkdir(parents=True, exist_ok=True)
    files = toy.Checkpoint(LAYERS, DENSE_LAYERS)
    body = toy.config(LAYERS, DENSE_LAYERS, files.bits)
    # As the community's: vLLM refuses it, and the profile's overrides repair it.
    body["text_config"]["hidden_act"] = "silu"
    (model / "config.json").write_text(json.dumps(body))
    tensors = {name: tensor.contiguous() for name, tensor in files.tensors.items()}
    save_file(tensors, model / "model.safetensors")
    make_tokenizer().save_pretrained(model)
    torch.save(files.dense, folder / "dense.pt")
    (folder / f"{NAME}.yaml").write_text(json.dumps(profile()))


def profile() -> dict[str, Any]:
    """The built-in one with the toy's sizes, on one rank."""
    made: dict[str, Any] = yaml.safe_load((ROOT / "profiles" / "minimax-m3.yaml").read_text())
    arguments = made["engine"]["args"]
    # Its tokenizer has no marks of thoughts and calls, and a text model takes no images.
    for name in ("reasoning-parser", "tool-call-parser", "enable-auto-tool-choice", "limit-mm-per-prompt"):
        del arguments[name]
        made["why"].pop(name)
    arguments["hf-overrides"]["architectures"] = [ARCHITECTURE]
    arguments |= {"max-model-len": 2048, "gpu-memory-utilization": 0.3, "kv-cache-memory-bytes": 1 << 30}
    canary = {"messages": [{"role": "user", "content": "Say something."}], "max_tokens": 8, "timeout_s": 300}
    memory = {"weights_gib": 0.1, "runtime_gib": 2, "reserve_gib": 4}
    return made | {
        "name": NAME,
        "model": {"path": NAME, "trust": True},
        "layout": {"tp": 1},
        "memory": memory | {"floors_gib": {"loading": 2, "serving": 4}},
        "ready": {"canaries": [canary]},
        "variants": {},
    }


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    value = x.float()
    scale = torch.rsqrt(value.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (value * scale * (1 + weight.float())).bfloat16()


def rotate(x: torch.Tensor) -> torch.Tensor:
    """[tokens, heads, 128], of which the first 64 rotate."""
    inverse = 1.0 / 5e6 ** (torch.arange(0, ROTATED, 2, device=x.device).float() / ROTATED)
    angle = torch.arange(x.size(0), device=x.device).float()[:, None] * inverse
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    half = ROTATED // 2
    a, b, rest = x[..., :half].float(), x[..., half:ROTATED].float(), x[..., ROTATED:].float()
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1).bfloat16()


def swiglu(weights: Weights, prefix: str, x: torch.Tensor) -> torch.Tensor:
    gate = (x @ weights[f"{prefix}.gate_proj"].T).float().clamp(max=7)
    up = (x @ weights[f"{prefix}.up_proj"].T).float().clamp(-7, 7)
    return (gate * torch.sigmoid(1.702 * gate) * (up + 1)).bfloat16() @ weights[f"{prefix}.down_proj"].T


def attention(weights: Weights, prefix: str, x: torch.Tensor) -> torch.Tensor:
    q, k, v = ((x @ weights[f"{prefix}.{one}_proj"].T).view(x.size(0), -1, HEAD) for one in "qkv")
    q = rotate(norm(q, weights[f"{prefix}.q_norm.weight"]))
    k = rotate(norm(k, weights[f"{prefix}.k_norm.weight"]))
    k, v = (one.repeat_interleave(q.size(1) // one.size(1), 1) for one in (k, v))
    heads = (one.transpose(0, 1).float() for one in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
    return out.transpose(0, 1).flatten(1).bfloat16() @ weights[f"{prefix}.o_proj"].T


def experts(weights: Weights, prefix: str, x: torch.Tensor) -> torch.Tensor:
    scores = torch.sigmoid(x.float() @ weights[f"{prefix}.gate.weight"].T)
    chosen = (scores + weights[f"{prefix}.gate.e_score_correction_bias"]).topk(TOP_K).indices
    share = scores.gather(1, chosen)
    share = share / share.sum(1, keepdim=True) * 2
    made = swiglu(weights, f"{prefix}.shared_experts", x).float()
    for token in range(x.size(0)):
        for expert, part in zip(chosen[token].tolist(), share[token], strict=True):
            made[token] += part * swiglu(weights, f"{prefix}.experts.{expert}", x[token]).float()
    return made.bfloat16()


def log_probabilities(weights: Weights, ids: list[int]) -> torch.Tensor:
    """Of what follows `ids`. The prompt is shorter than a block, so sparse attention sees all of it."""
    text = toy.TEXT
    x = weights[f"{text}embed_tokens.weight"][torch.tensor(ids, device=weights[f"{text}norm.weight"].device)]
    for layer in range(LAYERS):
        prefix = f"{text}layers.{layer}"
        before = norm(x, weights[f"{prefix}.input_layernorm.weight"])
        x = x + attention(weights, f"{prefix}.self_attn", before)
        after = norm(x, weights[f"{prefix}.post_attention_layernorm.weight"])
        block = swiglu if layer < DENSE_LAYERS else experts
        x = x + block(weights, f"{prefix}.mlp", after)
    last = norm(x[-1:], weights[f"{text}norm.weight"]) @ weights[f"{text}lm_head.weight"].T
    return last.float().log_softmax(-1)[0]


def sparkd(*words: str, **more: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-P", "-m", "sparkd", *words], text=True, check=False, **more)


def completion(url: str) -> Any:
    """What rank 0 answers: token ids as words, and by token the log-probabilities of the likeliest."""
    asked = {
        "model": NAME,
        "prompt": PROMPT,
        "max_tokens": TOKENS,
        "temperature": 0,
        "logprobs": 5,
        "ignore_eos": True,
        "return_tokens_as_token_ids": True,
    }
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(asked).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)["choices"][0]["logprobs"]


def up(folder: Path) -> int:
    os.environ["SPARKD_MODELS"] = str(folder)
    begun = time.monotonic()
    port = 8397
    words = [
        str(folder / f"{NAME}.yaml"),
        "--local",
        "1",
        "--set",
        f"api.port={port}",
        "--set",
        "api.key=none",
    ]
    try:
        started = sparkd("up", *words, "--timeout", str(UP_S))
        print(f"sparkd up: exit code {started.returncode} after {time.monotonic() - begun:.0f} s", flush=True)
        if started.returncode:
            sparkd("logs", NAME, timeout=60)
            return 1
        return compare(folder, completion(f"http://127.0.0.1:{port}"))
    finally:
        sparkd("down", "--all", timeout=120)


def compare(folder: Path, got: Any) -> int:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    weights = {name: tensor.to(device) for name, tensor in torch.load(folder / "dense.pt").items()}
    ids, same, furthest = list(PROMPT), 0, 0.0
    for token, found in zip(got["tokens"], got["top_logprobs"], strict=True):
        wanted = log_probabilities(weights, ids)
        ids.append(_number(token))
        same += int(wanted.argmax() == ids[-1])
        furthest = max(furthest, *(abs(float(wanted[_number(one)]) - told) for one, told in found.items()))
    print(f"answered {ids[len(PROMPT) :]}")
    print(f"same likeliest token: {same} of {TOKENS}; furthest log-probability: {furthest:.4f}")
    return 0 if furthest <= TOLERANCE else 1


def _number(token: str) -> int:
    return int(token.removeprefix("token_id:"))


if __name__ == "__main__":
    what, place = sys.argv[1], Path(sys.argv[2]).absolute()
    sys.exit(up(place) if what == "up" else write(place))
