"""Which tensors a model must have, under which name, and in which shape."""

from collections.abc import Iterable, Mapping

from featherback.errors import FeatherbackError
from featherback.models.config import ModelConfig
from featherback.models.names import TARGETS, hf_module
from featherback.weights.store import TensorStore

# Part of the model: name in the file. `{}` is the layer.
Names = Mapping[str, str]

GGUF_NAMES: Names = {
    "embed_tokens": "token_embd.weight",
    "norm": "output_norm.weight",
    "lm_head": "output.weight",
    "input_layernorm": "blk.{}.attn_norm.weight",
    "post_attention_layernorm": "blk.{}.ffn_norm.weight",
    "q_proj": "blk.{}.attn_q.weight",
    "k_proj": "blk.{}.attn_k.weight",
    "v_proj": "blk.{}.attn_v.weight",
    "o_proj": "blk.{}.attn_output.weight",
    "gate_proj": "blk.{}.ffn_gate.weight",
    "up_proj": "blk.{}.ffn_up.weight",
    "down_proj": "blk.{}.ffn_down.weight",
    "q_bias": "blk.{}.attn_q.bias",
    "k_bias": "blk.{}.attn_k.bias",
    "v_bias": "blk.{}.attn_v.bias",
}

HF_NAMES: Names = {
    "embed_tokens": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "lm_head": "lm_head.weight",
    "input_layernorm": "model.layers.{}.input_layernorm.weight",
    "post_attention_layernorm": "model.layers.{}.post_attention_layernorm.weight",
    **{target: hf_module(0, target).replace(".0.", ".{}.") + ".weight" for target in TARGETS},
    **{f"{x}_bias": f"model.layers.{{}}.self_attn.{x}_proj.bias" for x in "qkv"},
}

MAX_REPORTED = 8  # problems spelt out in one error


def layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shape of each part of one decoder layer: matrices (out_features, in_features), vectors (n,)."""
    width, inner, q, kv = config.hidden_size, config.intermediate_size, config.q_size, config.kv_size
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm": (width,),
        "post_attention_layernorm": (width,),
        "q_proj": (q, width),
        "k_proj": (kv, width),
        "v_proj": (kv, width),
        "o_proj": (width, q),
        "gate_proj": (inner, width),
        "up_proj": (inner, width),
        "down_proj": (width, inner),
    }
    if config.attention_bias:
        shapes |= {"q_bias": (q,), "k_bias": (kv,), "v_bias": (kv,)}
    return shapes


def top_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shape of each part outside the layers."""
    table = (config.vocab_size, config.hidden_size)
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens": table, "norm": (config.hidden_size,)}
    return shapes if config.tie_word_embeddings else {**shapes, "lm_head": table}


def check(store: TensorStore, config: ModelConfig, names: Names, also_used: Iterable[str] = ()) -> None:
    """Check that `store` has exactly the tensors of `config`, in the right shapes, all problems in one error.

    `also_used` names tensors that are known and read elsewhere, or known to mean nothing. A tensor that no
    one uses is an error: a model computed without one of its parts would be another model.
    """
    if config.num_hidden_layers > len(store.tensors):  # before listing the tensors of a corrupt layer count
        raise FeatherbackError(
            f"{store.path} claims {config.num_hidden_layers} layers but holds {len(store.tensors)} tensors."
        )
    expected = {names[part]: shape for part, shape in top_shapes(config).items()}
    for layer in range(config.num_hidden_layers):
        expected |= {names[part].format(layer): shape for part, shape in layer_shapes(config).items()}
    problems: list[str] = []
    for name, shape in expected.items():
        info = store.tensors.get(name)
        if info is None:
            problems.append(f"tensor {name} {shape} is missing")
        elif info.shape != shape:
            problems.append(f"tensor {name} has shape {info.shape} where the configuration needs {shape}")
    known = expected.keys() | set(also_used)
    if unknown := [repr(name) for name in store.tensors if name not in known]:
        problems.insert(0, f"not part of a supported {config.architecture} model: {_listed(', ', unknown)}")
    if problems:
        raise FeatherbackError(f"{store.path} does not fit its configuration: {_listed('; ', problems)}.")


def _listed(separator: str, items: list[str]) -> str:
    more = len(items) - MAX_REPORTED
    return separator.join(items[:MAX_REPORTED]) + (f"{separator}and {more} more" if more > 0 else "")
