"""Names of the parts of a model: the projections that adapters target, and the tensors of files."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from featherback.errors import FeatherbackError, expected

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
EXPERTS, ROUTER = "experts", "router"
"""Targets of a mixture of experts: the stacks of all experts, and the router. "all" does not include them."""
STACKS = ("gate_exps", "up_exps", "gate_up_exps", "down_exps")
"""The stacks, each with a matrix for every expert. A model has gate and up, or both in one."""


def on_request(target: str) -> bool:
    """Whether "all" leaves out this projection."""
    return target == ROUTER or target in STACKS


def parse_targets(targets: str | Iterable[str], projections: Iterable[str]) -> tuple[str, ...]:
    """Return the chosen projections, in the order of `projections`.

    `targets`: "all", "q,v", "q_proj,down_proj", "all,experts", or a list of such names. "q|qkv" means q, or qkv if
    there is no q. Raises FeatherbackError for an unknown name, and if nothing is chosen.
    """
    known = tuple(projections)
    given = targets.split(",") if isinstance(targets, str) else list(targets)
    names = [name.strip() for name in given if name.strip()]
    chosen: set[str] = set()
    for name in names:
        full = [each if each in known else f"{each}_proj" for each in name.split("|")]
        if name == "all":
            chosen.update(each for each in known if not on_request(each))
        elif name == EXPERTS and (stacks := [each for each in known if each in STACKS]):
            chosen.update(stacks)
        elif found := [each for each in full if each in known]:
            chosen.add(found[0])
        else:
            raise FeatherbackError(f"Unknown LoRA target {name!r}; {expected(name, [*short(known).split(','), 'all'])}")
    if not chosen:
        raise FeatherbackError(f"The list of LoRA targets is empty; choose some of {short(known)}, or all.")
    return tuple(target for target in known if target in chosen)


def short(targets: Iterable[str], separator: str = ",") -> str:
    """Join the names of projections as a user writes them: "q,v". All stacks of experts together are "experts"."""
    names = list(targets)
    whole = "down_exps" in names and ("gate_up_exps" in names or {"gate_exps", "up_exps"} <= set(names))
    written = (EXPERTS if whole and target in STACKS else target.removesuffix("_proj") for target in names)
    return separator.join(dict.fromkeys(written))


Names = Mapping[str, str]
"""Part of the model -> its name in the file, in which `{}` stands for the layer."""


class OfLayerBefore(str):
    """The name of a tensor that files count to the layer before the one that uses it."""

    def format(self, layer: int) -> str:  # type: ignore[override]
        """Return the name for the layer that uses it."""
        return super().format(layer - 1)


def without(parts: Iterable[str], names: Names) -> dict[str, str]:
    """Return the names without those of some parts."""
    left_out = set(parts)
    return {part: name for part, name in names.items() if part not in left_out}


class Naming(NamedTuple):
    """The names of a model's parts in a file or a folder."""

    tensors: Names
    """Names of the stored tensors."""
    modules: Names
    """Names of the modules in transformers, which PEFT uses."""
    others: tuple[str, ...] = ()
    """Prefixes of tensors that text does not use, such as those of a vision model."""
    norm_offset: float = 0.0
    """Added to the stored weights of norms."""


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
"""The names in most families. A family adds its own."""

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
    """The name of a projection in Hugging Face's model, such as "model.layers.3.self_attn.q_proj".

    The place of an adapter that is a branch has no weight there, and is called "model.layers.3.memory".
    """
    if not (target.endswith("_proj") or on_request(target)):
        raise ValueError(f"not a projection: {target}")
    stored = names.get(target, _LAYER + target.removesuffix("_proj"))
    return stored.format(layer).removesuffix(".weight")
