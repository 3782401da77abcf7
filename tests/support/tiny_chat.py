"""A tiny model one can talk with: a byte-level vocabulary and a ChatML template, and data sets for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from featherback.engine.formats.writer import Value
from tests.support.tiny_models import TINY_LLAMA, tiny, write_tiny

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
N_VOCAB = 256 + len(CONTROL)
VISIBLE = range(ord("!"), ord("~") + 1)


def byte_level_metadata() -> dict[str, Value]:
    """GGUF metadata of a tokenizer with one token per byte, no merges, and the control tokens of ChatML."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]  # GPT-2's printable names of bytes
    names = {byte: chr(byte) for byte in plain}
    names |= {byte: chr(256 + i) for i, byte in enumerate(b for b in range(256) if b not in names)}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [names[byte] for byte in range(256)] + list(CONTROL),
        "tokenizer.ggml.token_type": np.array([1] * 256 + [3] * len(CONTROL), np.int32),
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.eos_token_id": 258,
        "tokenizer.ggml.bos_token_id": 257,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHATML,
    }


def write_tiny_chat(path: Path, metadata: Mapping[str, Value] | None = None, seed: int = 0, **sizes: int) -> Path:
    """Write the model as GGUF and return `path`. `sizes`: fields of its configuration."""
    config = tiny(TINY_LLAMA, vocab_size=N_VOCAB, **sizes)
    return write_tiny(path, config, seed=seed, metadata={**byte_level_metadata(), **(metadata or {})})


def write_tiny_talker(path: Path, **sizes: int) -> Path:
    """Write the model with greedy answers that are visible ASCII and never end, and return `path`.

    Whether the other model's answer ends depends on how an instruction set rounds. Here the embeddings of all other
    tokens are zero. The head is tied, so with any adapter their logits are zero, and some visible token has a larger
    one.
    """
    from gguf import GGUFReader  # not in the environment of `make test-flower`, which does not need this

    write_tiny_chat(path, **sizes)
    reader = GGUFReader(path, "r+")
    [table] = [tensor.data for tensor in reader.tensors if tensor.name == "token_embd.weight"]
    table[[token for token in range(N_VOCAB) if token not in VISIBLE]] = 0  # (V, D)
    reader.data.flush()
    return path


def write_tiny_base(path: Path) -> Path:
    """Write a model of the same tokens without a chat template, a base model, as GGUF and return `path`."""
    metadata = byte_level_metadata()
    del metadata["tokenizer.chat_template"]
    return write_tiny(path, tiny(TINY_LLAMA, vocab_size=N_VOCAB), metadata=metadata)


def write_messages(path: Path, count: int = 12) -> Path:
    """Short questions and answers as JSONL; returns `path`."""
    rows = []
    for i in range(count):
        question, answer = f"What is {i} plus {i}?", f"It is {2 * i}" + "." * (i % 3)
        turns = (("user", question), ("assistant", answer))
        rows.append({"messages": [{"role": role, "content": content} for role, content in turns]})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
