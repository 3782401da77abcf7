"""Tiny encoders: transformers' own models with random weights, their folders, and what autograd says of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import BertConfig, BertModel, PreTrainedModel, RobertaConfig, RobertaModel

from featherback.data.alike import text_batch
from featherback.data.batch import Batch
from tests.support.oracle import PEFT_PREFIX, State

SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 80,
    "initializer_range": 0.15,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
FAMILIES = {
    "bert": (BertModel, BertConfig(**SIZES, max_position_embeddings=64)),
    "roberta": (RobertaModel, RobertaConfig(**SIZES, max_position_embeddings=66, pad_token_id=1, type_vocab_size=1)),
}
TARGETS = ["query", "key", "value", "attention.output.dense", "intermediate.dense", "output.dense"]
RANK, ALPHA = 4, 16.0


def encoder(name: str) -> PreTrainedModel:
    """Return a model with random weights, float32. Its norms and biases are random too."""
    torch.manual_seed(3)
    kind, config = FAMILIES[name]
    config._attn_implementation = "eager"
    model = kind(config, add_pooling_layer=False).eval()
    with torch.no_grad():
        for part, parameter in model.named_parameters():
            if part.endswith("bias"):
                parameter.normal_(0, 0.2)
            elif "LayerNorm" in part:
                parameter.normal_(1, 0.2)
    for table in (model.embeddings.word_embeddings, model.embeddings.position_embeddings):
        table.padding_idx = None  # it would leave a row out of the gradient
    return model.requires_grad_(False)


def saved(model: PreTrainedModel, folder: Path) -> Path:
    """Write a model as a folder."""
    model.save_pretrained(folder)
    return folder


def texts(vocabulary: int, negatives: int = 0, pairs: int = 5, seed: int = 0) -> list[list[np.ndarray]]:
    """Return examples of different lengths: an anchor, its partner, and texts that are not alike."""
    rng = np.random.default_rng(seed)
    return [
        [rng.integers(2, vocabulary, int(rng.integers(1, 20))).astype(np.int32) for _ in range(2 + negatives)]
        for _ in range(pairs)
    ]


def batch_of(examples: Sequence[Sequence[np.ndarray]]) -> Batch:
    """Return examples as one batch."""
    return text_batch([[(part, ids) for part, ids in zip(range(1, 9), texts)] for texts in examples])


def random_state(model: PreTrainedModel, seed: int = 1) -> State:
    """Return random values of an adapter of every linear layer."""
    rng, state = np.random.default_rng(seed), State()
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            rows, cols = module.weight.shape
            state[f"{name}.lora_A.weight"] = (cols**-0.5 * rng.standard_normal((RANK, cols))).astype(np.float32)
            state[f"{name}.lora_B.weight"] = (0.1 * rng.standard_normal((rows, RANK))).astype(np.float32)
    return state


def with_adapter(model: PreTrainedModel, state: State) -> Any:
    """Return the model with PEFT's adapter of these values."""
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=TARGETS)
    peft = get_peft_model(model, config).eval()
    with torch.no_grad():
        for name, parameter in peft.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.from_numpy(state[public(name)]))
    return peft


def public(name: str) -> str:
    return name.removeprefix(PEFT_PREFIX).replace(".default.", ".")


def pooled(model: Any, ids: np.ndarray, pooling: str) -> torch.Tensor:
    """Return the embedding of a text, which passes by itself."""
    states = model(input_ids=torch.from_numpy(ids)[None].long()).last_hidden_state[0]
    return {"mean": states.mean(0), "cls": states[0], "last": states[-1]}[pooling]


def contrastive(embeddings: list[list[torch.Tensor]], temperature: float, sizes: Sequence[int] = ()) -> torch.Tensor:
    """Return the mean loss of examples: cross-entropy of the cosines of each anchor with all other texts."""
    total = torch.zeros((), dtype=torch.float64)
    for size in sizes or (len(embeddings[0][0]),):
        units = [[torch.nn.functional.normalize(each[:size], dim=0) for each in row] for row in embeddings]
        others = torch.stack([row[k] for k in range(1, len(units[0])) for row in units])
        cosines = torch.stack([row[0] for row in units]) @ others.T
        total = total + torch.nn.functional.cross_entropy(cosines / temperature, torch.arange(len(units)))
    return total / max(1, len(sizes))


def gradients(model: Any) -> State:
    """Return the gradients of all trained values, by their names in files."""
    return {
        public(name): each.grad.float().numpy().copy()
        for name, each in model.named_parameters()
        if each.grad is not None
    }


WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "mat",
    "is",
    "was",
    "red",
    "big",
    "sat",
    "ran",
    "on",
    "in",
    "and",
    "under",
    "lazy",
    "house",
    "tree",
]


def tiny_folder(folder: Path) -> Path:
    """Write a tiny BERT with a WordPiece tokenizer for WORDS."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [chr(code) for code in range(97, 123)]
    names = [*special, *letters, *(f"##{each}" for each in letters), *WORDS[2:]]
    vocabulary = {name: number for number, name in enumerate(dict.fromkeys([*names, *WORDS, ".", "?"]))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.add_special_tokens(special)
    saved(encoder("bert"), folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def write_pairs(path: Path, count: int, seed: int = 0) -> Path:
    """Write pairs of texts that share words, with an anchor and its partner each."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        words = rng.choice(WORDS, 5).tolist()
        rows.append({"anchor": " ".join(words), "positive": " ".join([*reversed(words), "."])})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
