"""Make the tiny model: `.venv-vllm/bin/python tests/bed/make_tiny_model.py [DIR]` (default `.models/tiny`).

A Qwen3 of 2 layers with random weights, and its own byte-level BPE tokenizer with a chat template; nothing
is downloaded. The same files come out each time. A complete DIR is left alone; a new one is built beside it
and renamed, so that nobody ever sees half a model.

The weights are random but for one thing: the output matrix is the embedding matrix, shifted along one random
cycle through the readable tokens. So each token has a clear successor, two ranks and one rank agree at
temperature 0 in bfloat16 (between purely random logits the near ties are won by rounding), answers are
readable, and no answer ends before `max_tokens`. Embedding, attention, output and every collective still
take part in each token.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SEED = 20
VOCABULARY = 512
HIDDEN = 256
COMPLETE = "sparkd-tiny-v1"
"""Written last; another name means "made by another version of this script"."""

END, START_OF_TURN, END_OF_TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SENTENCES = (
    "The quick brown fox jumps over the lazy dog while the launcher waits for every rank of the gang.",
    "A gang of ranks lives and dies together, and a new generation takes a new rendezvous.",
    "Twelve times seven is eighty four, and 12 x 7 = 84 is what a good canary answers.",
    "What stays up is worth more than what comes up; what falls is explained in plain words.",
    "Write a short story about two small machines that share the work and never lose a token.",
    "You are a helpful assistant. Answer the question of the user with one word.",
)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        show_progress=False,
        special_tokens=[AddedToken(text, special=True) for text in (END, START_OF_TURN, END_OF_TURN)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(SENTENCES * 4, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END_OF_TURN, pad_token=END)
    fast.chat_template = CHAT_TEMPLATE
    return fast


def successors(tokenizer: PreTrainedTokenizerFast, generator: torch.Generator) -> torch.Tensor:
    """For each token the one it leads to: one random cycle through the words, into which all others lead."""
    texts = {token: tokenizer.decode([token]) for token in range(len(tokenizer))}
    words = [t for t, text in texts.items() if text[0] == " " and text[1:].isalpha() and len(text) > 3]
    order = torch.randperm(len(words), generator=generator).tolist()
    cycle = [words[i] for i in order]
    leads_to = torch.tensor([cycle[token % len(cycle)] for token in range(VOCABULARY)])
    for here, there in zip(cycle, cycle[1:] + cycle[:1], strict=True):
        leads_to[here] = there
    return leads_to


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    torch.manual_seed(SEED)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=HIDDEN,
            intermediate_size=2 * HIDDEN,
            num_hidden_layers=2,
            num_attention_heads=8,
            num_key_value_heads=4,
            head_dim=HIDDEN // 8,
            max_position_embeddings=4096,
            bos_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            tie_word_embeddings=False,
        )
    )
    generator = torch.Generator().manual_seed(SEED)
    embedding = torch.randn(VOCABULARY, HIDDEN, generator=generator)
    output = torch.zeros_like(embedding)
    output.index_add_(0, successors(tokenizer, generator), embedding)
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(embedding)
        model.lm_head.weight.copy_(output / HIDDEN**0.5)
    return model.to(torch.bfloat16)


def main() -> None:
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ".models/tiny")
    if (target / COMPLETE).exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as folder:
        building = Path(folder) / "model"
        tokenizer = make_tokenizer()
        tokenizer.save_pretrained(building)
        make_model(tokenizer).save_pretrained(building)
        (building / "model.safetensors").chmod(0o644)
        (building / COMPLETE).touch()
        if target.exists():
            shutil.rmtree(target)
        building.rename(target)


if __name__ == "__main__":
    main()
