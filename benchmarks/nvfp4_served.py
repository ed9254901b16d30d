"""C4b in vLLM on a GPU: a toy MiMo-V2 with its KV cache in 4 bits, and in bf16, against plain torch.

    PYTHONPATH=agents python benchmarks/nvfp4_served.py write FOLDER
    PYTHONPATH=agents python benchmarks/nvfp4_served.py serve FOLDER nvfp4
    PYTHONPATH=agents python benchmarks/nvfp4_served.py serve FOLDER nvfp4 +graphs
    PYTHONPATH=agents python benchmarks/nvfp4_served.py serve FOLDER nvfp4 +drafts
    PYTHONPATH=agents python benchmarks/nvfp4_served.py serve FOLDER auto
    PYTHONPATH=agents python benchmarks/nvfp4_served.py compare FOLDER

`write` needs torch and safetensors: 4 layers, 2 of them with a window of 128 and sinks, heads of 192 and 128.
`serve` needs vLLM 0.24 for CUDA: 8 tokens after each of two prompts, of 40 tokens and of 700, which is read
in three steps. `compare` computes the same in torch, with keys and values as the cache gives them back, and
says how far the log-probabilities of the likeliest tokens are off, and how far those of 4 bits and of bf16
are apart. Exit code 1 if a run in bf16 differs from torch by more than 0.06, one in 4 bits by more than 0.15,
or the two by more than 0.3.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from sparkd_mods.mimo_nvfp4_kv import reference
from sparkd_mods.mimo_nvfp4_kv.layout import Slot

HIDDEN, INNER, VOCABULARY = 512, 1024, 512
HEADS, KV_HEADS = 16, (4, 8)
"""KV heads of layers with full attention, and of those with a window."""
KEY, VALUE, WINDOW, ROTATED = 192, 128, 128, 64
PATTERN = (0, 1, 1, 0)
THETA = (1e7, 1e4)
VALUE_SCALE, EPSILON = 0.707, 1e-5
PROMPTS = [
    [(7 * place * place + 11 * place + 3) % VOCABULARY for place in range(length)] for length in (40, 700)
]
TOKENS = 8
GRAPHS = {
    "enforce_eager": False,
    "compilation_config": {
        "mode": 0,
        "cudagraph_mode": "FULL_DECODE_ONLY",
        "cudagraph_capture_sizes": [1, 2, 4],
    },
}
"""A graph of each decode step, and no compiling of the rest."""
DRAFTS = {
    "speculative_config": {
        "method": "ngram",
        "num_speculative_tokens": 7,
        "prompt_lookup_max": 2,
        "prompt_lookup_min": 1,
    },
    "disable_log_stats": False,
}
"""Steps of up to 8 tokens: what followed the last one earlier in the prompt is drafted."""
WAYS: dict[str, dict[str, Any]] = {"": {}, "+graphs": GRAPHS, "+drafts": DRAFTS}
RUNS = {"auto": 0.06, "nvfp4": 0.15, "nvfp4+graphs": 0.15, "nvfp4+drafts": 0.15}
"""How far a log-probability may be off: sums in bf16 in another order. In 4 bits a key that is rounded to the
other side there may get the next code."""
APART = 0.3
"""The same, between a cache in 4 bits and one in bf16."""
MODS = ("mimo-config", "mimo-nvfp4-kv")
Weights = dict[str, torch.Tensor]


def config() -> dict[str, Any]:
    return {
        "architectures": ["MiMoV2FlashForCausalLM"],
        "model_type": "mimo_v2",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": len(PATTERN),
        "hybrid_layer_pattern": list(PATTERN),
        "moe_layer_freq": [0] * len(PATTERN),
        "n_routed_experts": 8,
        "num_attention_heads": HEADS,
        "swa_num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS[0],
        "swa_num_key_value_heads": KV_HEADS[1],
        "head_dim": KEY,
        "swa_head_dim": KEY,
        "v_head_dim": VALUE,
        "swa_v_head_dim": VALUE,
        "sliding_window": WINDOW,
        "sliding_window_size": WINDOW,
        "attention_bias": False,
        "add_swa_attention_sink_bias": True,
        "attention_value_scale": VALUE_SCALE,
        "hidden_act": "silu",
        "layernorm_epsilon": EPSILON,
        "rope_theta": THETA[0],
        "swa_rope_theta": THETA[1],
        "partial_rotary_factor": 0.334,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


def write(folder: Path) -> int:
    folder.mkdir(exist_ok=True)
    generator = torch.Generator().manual_seed(4)
    made: Weights = {}

    def matrix(name: str, rows: int, columns: int, size: float = 1.0) -> None:
        made[name] = (torch.randn((rows, columns), generator=generator) * size / columns**0.5).bfloat16()

    matrix("model.embed_tokens.weight", VOCABULARY, HIDDEN, HIDDEN**0.5)
    matrix("lm_head.weight", VOCABULARY, HIDDEN, 2.0)
    made["model.norm.weight"] = torch.ones(HIDDEN).bfloat16()
    for layer, sliding in enumerate(PATTERN):
        prefix = f"model.layers.{layer}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            made[f"{prefix}.{name}.weight"] = torch.ones(HIDDEN).bfloat16()
        for name, rows in (
            ("q", HEADS * KEY),
            ("k", KV_HEADS[sliding] * KEY),
            ("v", KV_HEADS[sliding] * VALUE),
        ):
            # Large enough that a few tokens have most of the attention.
            matrix(f"{prefix}.self_attn.{name}_proj.weight", rows, HIDDEN, 1.2)
        # As in trained models a layer adds less than there is: one of chance magnifies every rounding.
        matrix(f"{prefix}.self_attn.o_proj.weight", HIDDEN, HEADS * VALUE, 0.5)
        if sliding:
            sinks = torch.randn(HEADS, generator=generator)
            made[f"{prefix}.self_attn.attention_sink_bias"] = sinks.bfloat16()
        for name, shape in (("gate", (INNER, HIDDEN)), ("up", (INNER, HIDDEN)), ("down", (HIDDEN, INNER))):
            matrix(f"{prefix}.mlp.{name}_proj.weight", *shape)
    (folder / "config.json").write_text(json.dumps(config()))
    save_file(made, folder / "model.safetensors")
    return 0


def serve(folder: Path, dtype: str, way: str) -> int:
    os.environ["SPARKD_MODS"] = json.dumps([{"name": name} for name in MODS])
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    begun = time.monotonic()
    # After the mods are named: vLLM reads its plugins when it is imported.
    from vllm import LLM, SamplingParams  # noqa: PLC0415 - as said above

    engine = LLM(
        model=str(folder),
        skip_tokenizer_init=True,
        dtype="bfloat16",
        kv_cache_dtype=dtype,
        attention_backend="TRITON_ATTN_DIFFKV",
        block_size=64,
        gpu_memory_utilization=0.1,
        kv_cache_memory_bytes=1 << 29,
        max_model_len=2048,
        max_num_batched_tokens=256,
        max_num_seqs=4,
        disable_custom_all_reduce=True,
        **({"enforce_eager": True} | WAYS[way]),
    )
    sampling = SamplingParams(max_tokens=TOKENS, temperature=0, logprobs=5, ignore_eos=True, detokenize=False)
    answers = engine.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], sampling)
    told = [
        {
            "tokens": list(answer.outputs[0].token_ids),
            "logprobs": [
                {token: found.logprob for token, found in step.items()} for step in answer.outputs[0].logprobs
            ],
        }
        for answer in answers
    ]
    (folder / f"{dtype}{way}.json").write_text(json.dumps(told))
    if way == "+drafts":
        counted = {one.name: one.value for one in engine.get_metrics() if hasattr(one, "value")}
        print({name: value for name, value in counted.items() if "spec_decode" in name})
    print(f"{dtype}: answered after {time.monotonic() - begun:.0f} s: {[one['tokens'] for one in told]}")
    return 0


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    value = x.float()
    return (value * torch.rsqrt(value.pow(2).mean(-1, keepdim=True) + EPSILON)).bfloat16() * weight


def rotate(x: torch.Tensor, theta: float) -> torch.Tensor:
    """[tokens, heads, KEY], of which the first ROTATED turn."""
    inverse = 1.0 / theta ** (torch.arange(0, ROTATED, 2, device=x.device).float() / ROTATED)
    angle = torch.arange(x.size(0), device=x.device).float()[:, None] * inverse
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    half = ROTATED // 2
    a, b, rest = x[..., :half].float(), x[..., half:ROTATED].float(), x[..., ROTATED:].float()
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1).bfloat16()


def attention(weights: Weights, prefix: str, sliding: int, x: torch.Tensor, *, packed: bool) -> torch.Tensor:
    q, k, v = ((x @ weights[f"{prefix}.{one}_proj.weight"].T) for one in "qkv")
    q, k = (rotate(one.view(x.size(0), -1, KEY), THETA[sliding]) for one in (q, k))
    v = v.view(x.size(0), -1, VALUE) * VALUE_SCALE
    keys, values = k.double(), v.double()
    if packed:
        keys, values = reference.unpack(reference.pack(k, v), Slot(KEY, VALUE))
    window = WINDOW if sliding else None
    sinks = weights[f"{prefix}.attention_sink_bias"] if sliding else None
    out = reference.attend(q, keys, values, KEY**-0.5, window, sinks)
    return out.flatten(1).bfloat16() @ weights[f"{prefix}.o_proj.weight"].T


def log_probabilities(weights: Weights, ids: list[int], *, packed: bool) -> torch.Tensor:
    """Of what follows each of the last TOKENS of ids but one."""
    x = weights["model.embed_tokens.weight"][torch.tensor(ids, device="cuda")]
    for layer, sliding in enumerate(PATTERN):
        prefix = f"model.layers.{layer}"
        before = norm(x, weights[f"{prefix}.input_layernorm.weight"])
        x = x + attention(weights, f"{prefix}.self_attn", sliding, before, packed=packed)
        after = norm(x, weights[f"{prefix}.post_attention_layernorm.weight"])
        gate, up = (after @ weights[f"{prefix}.mlp.{one}_proj.weight"].T for one in ("gate", "up"))
        made = torch.nn.functional.silu(gate.float()).bfloat16() * up
        x = x + made @ weights[f"{prefix}.mlp.down_proj.weight"].T
    last = norm(x[-TOKENS - 1 : -1], weights["model.norm.weight"]) @ weights["lm_head.weight"].T
    return last.float().log_softmax(-1)


def compare(folder: Path) -> int:
    weights = {name: one.cuda() for name, one in load_file(folder / "model.safetensors").items()}
    furthest = {}
    for dtype, allowed in RUNS.items():
        told = json.loads((folder / f"{dtype}.json").read_text())
        furthest[dtype], same = 0.0, 0
        for prompt, one in zip(PROMPTS, told, strict=True):
            right = log_probabilities(weights, prompt + one["tokens"], packed=dtype != "auto")
            same += int((right.argmax(-1).cpu() == torch.tensor(one["tokens"])).sum())
            for row, step in zip(right, one["logprobs"], strict=True):
                off = max(abs(float(row[int(token)]) - value) for token, value in step.items())
                furthest[dtype] = max(furthest[dtype], off / allowed)
        print(
            f"{dtype}: {same} of {TOKENS * len(PROMPTS)} tokens are torch's likeliest over the same cache, "
            f"furthest log-probability {furthest[dtype] * allowed:.4f}"
        )
    pairs = [json.loads((folder / f"{dtype}.json").read_text()) for dtype in ("auto", "nvfp4")]
    agree = [
        next((at for at in range(TOKENS) if a["tokens"][at] != b["tokens"][at]), TOKENS)
        for a, b in zip(*pairs, strict=True)
    ]
    apart = max(
        abs(b["logprobs"][at][token] - value)
        for a, b, until in zip(*pairs, agree, strict=True)
        for at in range(min(until + 1, TOKENS))
        for token, value in a["logprobs"][at].items()
        if token in b["logprobs"][at]
    )
    print(
        f"4 bits beside bf16: the same first {agree} of {TOKENS} tokens, "
        f"log-probabilities up to {apart:.3f} apart"
    )
    return 0 if max(furthest.values()) <= 1 and apart <= APART else 1


if __name__ == "__main__":
    what, place = sys.argv[1], Path(sys.argv[2])
    verbs = {"write": write, "compare": compare}
    if what == "serve":
        sys.exit(serve(place, sys.argv[3], "".join(sys.argv[4:])))
    sys.exit(verbs[what](place))
