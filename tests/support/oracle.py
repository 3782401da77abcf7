"""The truth that gradients are held against: Hugging Face transformers, PEFT and autograd, in float32.

Nothing of Featherback is imported here. The weights are read and dequantised by the `gguf` package, the
configuration is read from its metadata anew, and the q/k row order is undone by this module's own reshaping.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MinistralConfig,
    MinistralForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

State = dict[str, np.ndarray]

ALL_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PEFT_PREFIX = "base_model.model."
MAGNITUDE = "lora_magnitude_vector"
UNSUPERVISED = -100

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
_GEMMA_BLOCK = _BLOCK | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
GEMMA3_PERIOD = 6  # every sixth layer is global, where the file does not say


@dataclass(frozen=True)
class Reference:
    """What autograd says."""

    loss: float  # mean over the supervised tokens of all sequences together
    grads: State  # Hugging Face names and layout, float32
    logits: list[np.ndarray]  # (T, vocab) per sequence


def reference_model(path: str | Path) -> PreTrainedModel:
    """The transformers model (float32, eager attention) of a GGUF file: llama (Mistral if it has a window, Ministral if
    it lists the layers that have it), smollm3, qwen2, qwen3, gemma2, gemma3, olmo2, phi3,
    granite.
    """
    reader = GGUFReader(path)
    architecture = reader.get_field("general.architecture").contents()
    weights = {tensor.name: dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}
    heads, kv_heads = _field(reader, "attention.head_count"), _field(reader, "attention.head_count_kv")
    width = _field(reader, "embedding_length")
    head_dim = _field(reader, "attention.key_length", width // heads)
    family = _SPECIFIC[architecture](reader, head_dim)
    config: PreTrainedConfig = family.config_class(
        hidden_size=width,
        intermediate_size=_field(reader, "feed_forward_length"),
        num_hidden_layers=_field(reader, "block_count"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=len(weights["token_embd.weight"]),
        rms_norm_eps=_field(reader, "attention.layer_norm_rms_epsilon"),
        max_position_embeddings=_field(reader, "context_length"),
        tie_word_embeddings="output.weight" not in weights,
        attn_implementation="eager",
        **family.settings,
    )
    if architecture == "llama":
        config.attention_bias = "blk.0.attn_q.bias" in weights
    model = family.model_class(config).float().eval()
    if architecture == "gemma3":
        _cap_scores(model)
    permuted = {"attn_q": heads, "attn_k": kv_heads} if architecture in ("llama", "smollm3", "granite") else {}
    _fill(model, weights, family, permuted)
    return model


class Specific(NamedTuple):
    """What a family does not share with the others."""

    config_class: type[PreTrainedConfig]
    model_class: type[PreTrainedModel]
    settings: dict[str, Any]
    """Of the configuration."""
    block: Mapping[str, str] = _BLOCK
    """Part of a block in the file: in the model."""
    norms_from_one: bool = False
    """The file holds 1 + w, the modules w."""


def _llama(reader: GGUFReader, head_dim: int) -> Specific:
    """A llama whose file has a window is a Mistral: all of its layers have it, unless they are listed."""
    window = _field(reader, "attention.sliding_window")
    if window is None:
        return Specific(LlamaConfig, LlamaForCausalLM, _rope(reader))
    own = {"sliding_window": window} | _rope(reader)
    if (local := _field(reader, "attention.sliding_window_pattern")) is not None:
        return Specific(MinistralConfig, MinistralForCausalLM, own | {"layer_types": _layer_types(local)})
    return Specific(MistralConfig, MistralForCausalLM, own)


def _smollm3(reader: GGUFReader, head_dim: int) -> Specific:
    """Every fourth layer does not rotate: the file has no place to say otherwise."""
    own: dict[str, Any] = {"no_rope_layer_interval": 4, "pad_token_id": None}
    if (window := _field(reader, "attention.sliding_window")) is not None:
        types = _layer_types(_field(reader, "attention.sliding_window_pattern"))
        own |= {"use_sliding_window": True, "sliding_window": window, "layer_types": types}
    return Specific(SmolLM3Config, SmolLM3ForCausalLM, own | _rope(reader))


def _qwen2(reader: GGUFReader, head_dim: int) -> Specific:
    return Specific(Qwen2Config, Qwen2ForCausalLM, _late_window(reader) | _rope(reader))


def _qwen3(reader: GGUFReader, head_dim: int) -> Specific:
    return Specific(Qwen3Config, Qwen3ForCausalLM, _late_window(reader) | _rope(reader))


def _gemma2(reader: GGUFReader, head_dim: int) -> Specific:
    """What the file does not say is left to transformers' own defaults, but the local layers' number."""
    scale = _field(reader, "attention.scale", head_dim**-0.5)
    local = _field(reader, "attention.sliding_window_pattern", [True, False] * _field(reader, "block_count"))
    stated = {
        "sliding_window": _field(reader, "attention.sliding_window"),
        "attn_logit_softcapping": _field(reader, "attn_logit_softcapping"),
        "final_logit_softcapping": _field(reader, "final_logit_softcapping"),
    }
    given = {name: value or None for name, value in stated.items() if value is not None}  # 0: no cap
    kinds = ["sliding_attention" if is_local else "full_attention" for is_local in local]
    own = {"query_pre_attn_scalar": round(scale**-2), "layer_types": kinds[: _field(reader, "block_count")]}
    return Specific(Gemma2Config, Gemma2ForCausalLM, own | given | _rope(reader), _GEMMA_BLOCK, norms_from_one=True)


def _gemma3(reader: GGUFReader, head_dim: int) -> Specific:
    layers = _field(reader, "block_count")
    local = _field(reader, "attention.sliding_window_pattern")
    if local is None:
        local = [layer % GEMMA3_PERIOD < GEMMA3_PERIOD - 1 for layer in range(layers)]
    scale = _field(reader, "attention.scale", head_dim**-0.5)
    factor = _field(reader, "rope.scaling.factor", 1.0)
    globally = {"rope_type": "linear", "factor": factor} if factor != 1 else {"rope_type": "default"}
    return Specific(
        Gemma3TextConfig,
        Gemma3ForCausalLM,
        {
            "sliding_window": _field(reader, "attention.sliding_window"),
            "layer_types": _layer_types(local),
            "query_pre_attn_scalar": round(scale**-2),
            "attn_logit_softcapping": _field(reader, "attn_logit_softcapping"),
            "final_logit_softcapping": _field(reader, "final_logit_softcapping"),
            "rope_parameters": {
                "full_attention": {**globally, "rope_theta": _field(reader, "rope.freq_base")},
                "sliding_attention": {
                    "rope_type": "default",
                    "rope_theta": _field(reader, "rope.freq_base_swa", 10000.0),
                },
            },
        },
        _GEMMA_BLOCK,
        norms_from_one=True,
    )


def _phi3(reader: GGUFReader, head_dim: int) -> Specific:
    """Where there is a window, all layers have it."""
    own = {"sliding_window": _field(reader, "attention.sliding_window"), "pad_token_id": None}
    if (context := _field(reader, "rope.scaling.original_context_length")) is not None:
        own["original_max_position_embeddings"] = context
    block = _BLOCK | {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
    rope = _rope(reader)
    rotated = _field(reader, "rope.dimension_count", head_dim)
    rope["rope_parameters"]["partial_rotary_factor"] = rotated / head_dim
    return Specific(Phi3Config, Phi3ForCausalLM, own | rope, block)


def _olmo2(reader: GGUFReader, head_dim: int) -> Specific:
    """Norms stand behind attention and MLP only."""
    block = {part: name for part, name in _BLOCK.items() if part not in ("attn_norm", "ffn_norm")} | {
        "post_attention_norm": "post_attention_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    }
    return Specific(Olmo2Config, Olmo2ForCausalLM, {"pad_token_id": None} | _rope(reader), block)


def _granite(reader: GGUFReader, head_dim: int) -> Specific:
    multipliers = {
        "embedding_multiplier": _field(reader, "embedding_scale", 1.0),
        "residual_multiplier": _field(reader, "residual_scale", 1.0),
        "attention_multiplier": _field(reader, "attention.scale", head_dim**-0.5),
        "logits_scaling": _field(reader, "logit_scale"),
    }
    return Specific(GraniteConfig, GraniteForCausalLM, multipliers | _rope(reader))


_SPECIFIC = {
    "llama": _llama,
    "smollm3": _smollm3,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "granite": _granite,
    "olmo2": _olmo2,
    "phi3": _phi3,
}


def _rope(reader: GGUFReader) -> dict[str, Any]:
    """Of Llama 3's stretching the file holds what it comes to: see `_fill`."""
    rope = {"rope_type": "default", "rope_theta": _field(reader, "rope.freq_base", 10000.0)}
    kind = _field(reader, "rope.scaling.type")
    if kind is not None:
        rope["rope_type"] = kind
    if kind in ("linear", "yarn"):
        rope["factor"] = _field(reader, "rope.scaling.factor")
    if kind in ("yarn", "longrope"):
        rope["original_max_position_embeddings"] = _field(reader, "rope.scaling.original_context_length")
    if kind == "yarn":
        rope |= {name: _field(reader, f"rope.scaling.yarn_{name}") for name in ("beta_fast", "beta_slow")}
    if kind == "longrope":
        rope["attention_factor"] = _field(reader, "rope.scaling.attn_factor")
        for tensor in reader.tensors:
            if tensor.name.startswith("rope_factors_"):
                length = tensor.name.removeprefix("rope_factors_").removesuffix(".weight")
                rope[f"{length}_factor"] = tensor.data.tolist()
    return {"rope_parameters": rope}


def _layer_types(local: Sequence[bool]) -> list[str]:
    return ["sliding_attention" if is_local else "full_attention" for is_local in local]


def _late_window(reader: GGUFReader) -> dict[str, Any]:
    """Qwen's window, which the layers from some number on have."""
    window = _field(reader, "attention.sliding_window")
    if window is None:
        return {}
    local = _field(reader, "attention.sliding_window_pattern")
    first = local.index(True)
    assert local == [layer >= first for layer in range(len(local))], "transformers' Qwen has no other pattern"
    return {"use_sliding_window": True, "sliding_window": window, "max_window_layers": first}


def _cap_scores(model: PreTrainedModel) -> None:
    """Gemma 3's scores are capped if its configuration says so.

    transformers reads the cap and its eager attention computes it, but Gemma3Attention does not hand it on.
    """

    def with_cap(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        return args, kwargs | {"softcap": module.attn_logit_softcapping}

    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(with_cap, with_kwargs=True)


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
    `before` is told of each sequence how many tokens went before it, and how many it has.
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


def _field(reader: GGUFReader, key: str, default: Any = None) -> Any:
    architecture = reader.get_field("general.architecture").contents()
    field = reader.get_field(f"{architecture}.{key}")
    return default if field is None else field.contents()


def _fill(
    model: PreTrainedModel, weights: Mapping[str, np.ndarray], family: Specific, permuted: Mapping[str, int]
) -> None:
    """Put every tensor of the file into the model; each must find a place, and each place a tensor."""
    filled: dict[str, torch.Tensor] = {}
    for name, array in weights.items():
        if name == "rope_freqs.weight":
            model.model.rotary_emb.inv_freq /= torch.from_numpy(array.copy())
        if name.startswith("rope_"):  # the others are in the configuration
            continue
        stem, kind = name.rsplit(".", 1)
        if family.norms_from_one and stem.endswith("_norm"):
            array = array - np.float32(1)
        if stem.startswith("blk."):
            _, layer, part = stem.split(".")
            heads = permuted.get(part)
            array = array if heads is None else _to_half_split(array, heads)
            filled[f"model.layers.{layer}.{family.block[part]}.{kind}"] = torch.tensor(array)
        else:
            filled[f"{_TOP[stem]}.{kind}"] = torch.tensor(array)
    if model.config.tie_word_embeddings:
        filled["lm_head.weight"] = filled["model.embed_tokens.weight"]
    for name, parameter in model.named_parameters():
        if name.endswith("o_proj.bias"):  # transformers has it wherever q, k and v have one
            filled[name] = torch.zeros_like(parameter)
    model.load_state_dict(filled, strict=True)


def _to_half_split(array: np.ndarray, heads: int) -> np.ndarray:
    """Rows from llama.cpp's order, where a rotated pair is adjacent, to halves."""
    pairs = array.reshape(heads, array.shape[0] // heads // 2, 2, *array.shape[1:])
    return np.stack([pairs[:, :, 0], pairs[:, :, 1]], axis=1).reshape(array.shape)


def _normal(rng: np.random.Generator, shape: tuple[int, ...], std: float) -> np.ndarray:
    return (std * rng.standard_normal(shape)).astype(np.float32)
