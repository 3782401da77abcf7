"""The truth that gradients are held against: Hugging Face transformers, PEFT and autograd, in float32.

Nothing of Featherback computes here. The weights are read and dequantised by the `gguf` package, the configuration is
read from its metadata anew (each family's `twin`), and the q/k row order is undone by this module's own reshaping.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import PreTrainedConfig, PreTrainedModel

from tests.support.families import BY_ARCHITECTURE
from tests.support.families.experts import joined
from tests.support.families.twin import Twin, entry
from tests.support.own_gradients import MAGNITUDE

State = dict[str, np.ndarray]

ALL_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PEFT_PREFIX = "base_model.model."
UNSUPERVISED = -100
NO_TARGETS = ("shared_expert_gate", "shared_mlp.input_linear", "shared_mlp.output_linear")
"""Linear modules that our adapters do not change."""
NO_TARGETS_OF = {"qwen3_next": ("in_proj_qkvz", *(f"shared_expert.{part}_proj" for part in ("gate", "up", "down")))}
"""The same for models of one type."""

_TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "token_embd_norm": "model.embedding_norm",
    "output": "lm_head",
}


@dataclass(frozen=True)
class Reference:
    """What autograd says."""

    loss: float  # mean over the supervised tokens of all sequences together
    grads: State  # Hugging Face names and layout, float32
    logits: list[np.ndarray]  # (T, vocab) per sequence


def reference_model(path: str | Path) -> PreTrainedModel:
    """The transformers model (float32, eager attention, frozen) of a GGUF file: the twin of its family."""
    reader = GGUFReader(path)
    architecture = reader.get_field("general.architecture").contents()
    weights = {tensor.name: dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}
    heads, kv_heads = entry(reader, "attention.head_count"), entry(reader, "attention.head_count_kv")
    if isinstance(kv_heads, list):  # layer by layer, 0 in those without attention
        kv_heads = max(kv_heads)
    width = entry(reader, "embedding_length")
    head_dim = entry(reader, "attention.key_length", width // heads)
    twin = BY_ARCHITECTURE[architecture].twin(reader, head_dim)
    config: PreTrainedConfig = twin.config_class(
        hidden_size=width,
        intermediate_size=entry(reader, "feed_forward_length"),
        num_hidden_layers=entry(reader, "block_count"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=len(weights["token_embd.weight"]),
        rms_norm_eps=entry(reader, "attention.layer_norm_rms_epsilon"),
        max_position_embeddings=entry(reader, "context_length"),
        tie_word_embeddings="output.weight" not in weights,
        attn_implementation="eager",
        **twin.settings,
    )
    model = twin.model_class(config).float().eval().requires_grad_(False)
    twin.change(model)
    _fill(model, weights, twin, {"attn_q": heads, "attn_k": kv_heads} if twin.interleaved else {})
    return model


def random_adapter(
    model: PreTrainedModel, rank: int, targets: Iterable[str] | None = None, seed: int = 0, dora: bool = False
) -> State:
    """Random A (r, in) and B (out, r), neither zero, for each target of each layer (None: every linear module), by
    Hugging Face name. `dora`: with magnitudes m (out,), two thirds to four thirds of the weights' own.
    """
    rng = np.random.default_rng(seed)
    state: State = {}
    chosen = None if targets is None else set(targets)
    for name, module in model.model.named_modules(prefix="model"):
        if name.endswith((*NO_TARGETS, *NO_TARGETS_OF.get(model.config.model_type, ()))):
            continue
        if isinstance(module, torch.nn.Linear) and (chosen is None or name.rsplit(".", 1)[-1] in chosen):
            rows, cols = module.weight.shape
            state[f"{name}.lora_A.weight"] = _normal(rng, (rank, cols), cols**-0.5)
            state[f"{name}.lora_B.weight"] = _normal(rng, (rows, rank), 0.3 * rank**-0.5)
            if dora:
                lengths = module.weight.detach().norm(dim=1).numpy()
                state[f"{name}.{MAGNITUDE}"] = (lengths * rng.uniform(2 / 3, 4 / 3, rows)).astype(np.float32)
    return state


def reference(
    model: PreTrainedModel,
    state: Mapping[str, np.ndarray],
    sequences: Sequence[Sequence[int]],
    labels: Sequence[Sequence[int] | None] | None = None,
    alpha: float = 16,
    before: Callable[[PeftModel, int, int], None] = lambda peft, first, count: None,
) -> Reference:
    """Loss, adapter gradients and logits of `model` with the LoRA adapter `state`.

    Each sequence is run by itself, unpadded. `labels` are aligned with the tokens, as Hugging Face has them:
    the label at t is predicted from the tokens before t, -100 is not supervised; None supervises all.
    `before` is called with the number of tokens before each sequence, and its number of tokens.
    `model` is left as it was found.
    """
    peft = with_adapter(model, state, alpha)
    loss, logits = _loss(peft, sequences, labels, before)
    loss.backward()
    grads = {_public(name): p.grad.numpy().copy() for name, p in peft.named_parameters() if p.grad is not None}
    peft.unload()
    assert grads.keys() == state.keys(), "the oracle must differentiate exactly the adapter it was given"
    return Reference(loss.item(), grads, logits)


def weight_gradients(
    model: PreTrainedModel, sequences: Sequence[Sequence[int]], labels: Sequence[Sequence[int] | None] | None = None
) -> Reference:
    """As `reference`, of every weight of the model itself, by its name in transformers."""
    model.model.embed_tokens.padding_idx = None  # it would leave a row out, which a text may use
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    loss, logits = _loss(model, sequences, labels, lambda model, first, count: None)
    loss.backward()
    grads = {}
    for name, parameter in model.named_parameters():
        grads[name] = np.zeros(parameter.shape, np.float32) if parameter.grad is None else parameter.grad.numpy().copy()
        parameter.grad = None
        parameter.requires_grad_(False)
    return Reference(loss.item(), grads, logits)


def _loss(
    model: Any,
    sequences: Sequence[Sequence[int]],
    labels: Sequence[Sequence[int] | None] | None,
    before: Callable[[Any, int, int], None],
) -> tuple[torch.Tensor, list[np.ndarray]]:
    """The mean loss over the supervised tokens of all sequences, each run by itself, and the logits."""
    total, count, seen, logits = torch.zeros(()), 0, 0, []
    for index, sequence in enumerate(sequences):
        before(model, seen, len(sequence))
        seen += len(sequence)
        tokens = torch.tensor([list(map(int, sequence))])
        given = None if labels is None else labels[index]
        target = tokens if given is None else torch.tensor([list(map(int, given))])
        out = model(input_ids=tokens, use_cache=False).logits
        logits.append(out[0].detach().numpy())
        shifted = target[0, 1:]
        total = total + torch.nn.functional.cross_entropy(
            out[0, :-1], shifted, ignore_index=UNSUPERVISED, reduction="sum"
        )
        count += int((shifted != UNSUPERVISED).sum())
    return total / count, logits


def with_adapter(model: PreTrainedModel, state: Mapping[str, np.ndarray], alpha: float) -> PeftModel:
    """`model` wrapped by PEFT, its adapter filled with `state`; only adapter parameters need a gradient.

    A state that has magnitudes is a DoRA.
    """
    rank = next(a.shape[0] for name, a in state.items() if ".lora_A." in name)
    targets = sorted({name.split(".lora_")[0].rsplit(".", 1)[-1] for name in state})
    dora = any(name.endswith(MAGNITUDE) for name in state)
    peft = get_peft_model(
        model, LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules=targets, use_dora=dora)
    )
    with torch.no_grad():
        for name, parameter in peft.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.from_numpy(np.ascontiguousarray(state[_public(name)])))
    return peft.eval()


def _public(peft_name: str) -> str:
    """As PEFT's files call it."""
    name = peft_name.removeprefix(PEFT_PREFIX).replace(".default.", ".")
    return name.replace(f"{MAGNITUDE}.weight", MAGNITUDE)


def _fill(model: PreTrainedModel, weights: Mapping[str, np.ndarray], twin: Twin, permuted: Mapping[str, int]) -> None:
    """Put every tensor of the file into the model; each must find a place, and each place a tensor."""
    filled: dict[str, torch.Tensor] = {}
    for name, array in weights.items():
        if name == "rope_freqs.weight":
            model.model.rotary_emb.inv_freq /= torch.from_numpy(array.copy())
        if name.startswith("rope_"):  # the others are in the configuration
            continue
        stem, kind = name.rsplit(".", 1)
        if twin.norms_from_one and stem.endswith("_norm") and not stem.endswith("ssm_norm"):
            array = array - np.float32(1)
        if stem.startswith("blk."):
            if twin.restore is not None:
                _, layer, part = name.split(".", 2)
                part, array = twin.restore(part, array)
                filled[f"model.layers.{layer}.{part}"] = torch.tensor(array)
                continue
            _, layer, part = stem.split(".", 2)
            heads = permuted.get(part)
            array = array if heads is None else _to_half_split(array, heads)
            array = array[:, None] if part == "shortconv.conv" else array
            filled[f"model.layers.{layer}.{twin.block[part]}.{kind}"] = torch.tensor(array)
        else:
            filled[f"{_TOP[stem]}.{kind}"] = torch.tensor(array)
    if model.config.tie_word_embeddings:
        filled["lm_head.weight"] = filled["model.embed_tokens.weight"]
    for name, parameter in model.named_parameters():
        if name.endswith("o_proj.bias"):  # transformers has it wherever q, k and v have one
            filled.setdefault(name, torch.zeros_like(parameter))
    model.load_state_dict((twin.arrange or joined)(filled), strict=True)


def _to_half_split(array: np.ndarray, heads: int) -> np.ndarray:
    """Rows from llama.cpp's order, where a rotated pair is adjacent, to halves."""
    pairs = array.reshape(heads, array.shape[0] // heads // 2, 2, *array.shape[1:])
    return np.stack([pairs[:, :, 0], pairs[:, :, 1]], axis=1).reshape(array.shape)


def _normal(rng: np.random.Generator, shape: tuple[int, ...], std: float) -> np.ndarray:
    return (std * rng.standard_normal(shape)).astype(np.float32)
