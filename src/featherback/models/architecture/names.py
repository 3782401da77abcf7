"""What the parts of a model are called: the projections an adapter can target, and the tensors of files."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from featherback.errors import FeatherbackError, expected

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")


def parse_targets(targets: str | Iterable[str], projections: Iterable[str]) -> tuple[str, ...]:
    """Those of `projections`, in their order, that "all", "q,v", "q_proj,down_proj" or a list of such names means.
    "q|qkv": q, or qkv where there is no q.

    FeatherbackError for an unknown name or for none at all.
    """
    known = tuple(projections)
    given = targets.split(",") if isinstance(targets, str) else list(targets)
    names = [name.strip() for name in given if name.strip()]
    chosen: set[str] = set()
    for name in names:
        full = [each if each.endswith("_proj") else f"{each}_proj" for each in name.split("|")]
        if name == "all":
            chosen.update(known)
        elif found := [each for each in full if each in known]:
            chosen.add(found[0])
        else:
            raise FeatherbackError(f"Unknown LoRA target {name!r}; {expected(name, [*short(known).split(','), 'all'])}")
    if not chosen:
        raise FeatherbackError("No LoRA target is named; choose some projections, or all.")
    return tuple(target for target in known if target in chosen)


def short(targets: Iterable[str], separator: str = ",") -> str:
    """Projections as a user writes them: "q,v"."""
    return separator.join(target.removesuffix("_proj") for target in targets)


Names = Mapping[str, str]
"""Part of the model: name in the file. `{}` is the layer."""


class Naming(NamedTuple):
    """What a file, or a folder, calls the parts of its model."""

    tensors: Names
    """As they are stored."""
    modules: Names
    """As transformers has them, and so PEFT."""
    others: tuple[str, ...] = ()
    """How the names of tensors begin that no text goes through, as those of images."""


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
    "q_norm": "blk.{}.attn_q_norm.weight",
    "k_norm": "blk.{}.attn_k_norm.weight",
}
"""As most families have them; a family adds what it alone has."""

_LAYER = "model.layers.{}."
HF_NAMES: Names = {
    "embed_tokens": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "lm_head": "lm_head.weight",
    "input_layernorm": _LAYER + "input_layernorm.weight",
    "post_attention_layernorm": _LAYER + "post_attention_layernorm.weight",
    **{target: f"{_LAYER}self_attn.{target}.weight" for target in ATTENTION},
    **{target: f"{_LAYER}mlp.{target}.weight" for target in MLP},
    **{f"{x}_bias": f"{_LAYER}self_attn.{x}_proj.bias" for x in "qkv"},
    **{f"{x}_norm": f"{_LAYER}self_attn.{x}_norm.weight" for x in "qk"},
}


def hf_module(names: Names, layer: int, target: str) -> str:
    """The Hugging Face name of a projection: "model.layers.3.self_attn.q_proj"."""
    if not target.endswith("_proj"):
        raise ValueError(f"not a projection: {target}")
    return names[target].format(layer).removesuffix(".weight")
