"""A3 and A1 on a GPU: vLLM serves a toy MiniMax-M3 through the mods, and plain torch computes the same.

    export PYTHONPATH=agents:tests/contract/mods/inside
    python benchmarks/minimax_served.py write FOLDER
    python benchmarks/minimax_served.py serve FOLDER

`write` needs torch and safetensors: 3 layers (1 dense, 2 sparse), hidden 1024, experts of mixed widths, in
the form of the community checkpoint. `serve` needs vLLM 0.24 for CUDA: 6 tokens, greedy, after a prompt of
11, each with the log-probabilities of the first five. The dense weights that the checkpoint was packed from
say what they ought to be, token by token. Exit code 1 if the likeliest token differs or one is off by more
than 0.05.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import minimax_toy as toy
import torch
from safetensors.torch import save_file

toy.HIDDEN, toy.INNER, toy.DENSE = 1024, 512, 1024
LAYERS, DENSE_LAYERS = 3, 1
PROMPT = [5, 9, 77, 130, 201, 33, 8, 250, 61, 17, 90]
TOKENS = 6
TOP_K, HEAD, ROTATED = 4, 128, 64
TOLERANCE = 0.05
"""Of a log-probability: two sums in bf16 in another order."""
ARCHITECTURE = "MiniMaxM3SparseForCausalLM"
MODS = ("autoround-mixed", "minimax-m3-loader", "minimax-m3-norm")
Weights = dict[str, torch.Tensor]


def write(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    files = toy.Checkpoint(LAYERS, DENSE_LAYERS)
    body = toy.config(LAYERS, DENSE_LAYERS, files.bits) | {"architectures": [ARCHITECTURE]}
    (folder / "config.json").write_text(json.dumps(body))
    tensors = {name: tensor.contiguous() for name, tensor in files.tensors.items()}
    save_file(tensors, folder / "model.safetensors")
    torch.save(files.dense, folder / "dense.pt")


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


def answer(folder: Path) -> Any:
    """What vLLM generates: token ids, and by token the log-probabilities of the likeliest."""
    os.environ["SPARKD_MODS"] = json.dumps([{"name": name} for name in MODS])
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    # After the mods are named: vLLM reads its plugins when it is imported.
    from vllm import LLM, SamplingParams  # noqa: PLC0415 - as said above
    from vllm.model_executor.models.registry import ModelRegistry  # noqa: PLC0415 - as said above
    from vllm.models.minimax_m3.nvidia import model  # noqa: PLC0415 - as said above
    from vllm.plugins import load_general_plugins  # noqa: PLC0415 - as said above

    load_general_plugins()
    ModelRegistry.register_model(ARCHITECTURE, getattr(model, ARCHITECTURE))
    engine = LLM(
        model=str(folder),
        skip_tokenizer_init=True,
        dtype="bfloat16",
        enforce_eager=True,
        block_size=128,
        attention_backend="TRITON_ATTN",
        gpu_memory_utilization=0.3,
        kv_cache_memory_bytes=1 << 30,
        max_model_len=2048,
        max_num_batched_tokens=2048,
        disable_custom_all_reduce=True,
    )
    sampling = SamplingParams(max_tokens=TOKENS, temperature=0, logprobs=5, ignore_eos=True, detokenize=False)
    return engine.generate([{"prompt_token_ids": PROMPT}], sampling)[0].outputs[0]


def serve(folder: Path) -> int:
    begun = time.monotonic()
    got = answer(folder)
    print(f"answered after {time.monotonic() - begun:.0f} s: {list(got.token_ids)}")
    weights = {name: tensor.cuda() for name, tensor in torch.load(folder / "dense.pt").items()}
    ids, same, furthest = list(PROMPT), 0, 0.0
    for token, found in zip(got.token_ids, got.logprobs, strict=True):
        wanted = log_probabilities(weights, ids)
        same += int(wanted.argmax() == token)
        furthest = max(furthest, *(abs(float(wanted[one]) - told.logprob) for one, told in found.items()))
        ids.append(token)
    print(f"same likeliest token: {same} of {TOKENS}; furthest log-probability: {furthest:.4f}")
    return 0 if same == TOKENS and furthest <= TOLERANCE else 1


if __name__ == "__main__":
    what, place = sys.argv[1], Path(sys.argv[2])
    sys.exit(serve(place) if what == "serve" else write(place))
