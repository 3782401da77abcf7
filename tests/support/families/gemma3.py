"""Gemma 3: as Gemma 2, with norms of q's and k's heads, five local layers of six and a rope of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from featherback.engine.formats.types import TensorType
from featherback.models.families.gemma3 import Gemma3Config
from tests.support.families.base import Cases, Family
from tests.support.families.gemma2 import GELU_BOUND, LLAMA_CPP, TINY_GEMMA2
from tests.support.families.twin import FOUR_NORMS, Twin, entry, layer_types

if TYPE_CHECKING:
    from gguf import GGUFReader, GGUFWriter
    from transformers import PreTrainedModel

# Everything that Gemma 3 may set. Its seventh layer begins the pattern anew.
TINY_GEMMA3 = Gemma3Config(
    **{**vars(TINY_GEMMA2), "architecture": "gemma3", "num_hidden_layers": 7, "rope_theta": 1e6}
    | {"windows": (7, 7, 7, 7, 7, 0, 7)},
    local_theta=5000.0,
    rope_divisor=8.0,
)
NO_CAPS = {"attention_softcap": 0.0, "final_softcap": 0.0}
PERIOD = 6  # every sixth layer is global, where the file does not say


def twin(reader: GGUFReader, head_dim: int) -> Twin:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    local = entry(reader, "attention.sliding_window_pattern")
    if local is None:
        local = [layer % PERIOD < PERIOD - 1 for layer in range(entry(reader, "block_count"))]
    scale = entry(reader, "attention.scale", head_dim**-0.5)
    factor = entry(reader, "rope.scaling.factor", 1.0)
    globally = {"rope_type": "linear", "factor": factor} if factor != 1 else {"rope_type": "default"}
    locally = {"rope_type": "default", "rope_theta": entry(reader, "rope.freq_base_swa", 10000.0)}
    settings = {
        "sliding_window": entry(reader, "attention.sliding_window"),
        "layer_types": layer_types(local),
        "query_pre_attn_scalar": round(scale**-2),
        "attn_logit_softcapping": entry(reader, "attn_logit_softcapping"),
        "final_logit_softcapping": entry(reader, "final_logit_softcapping"),
        "rope_parameters": {
            "full_attention": {**globally, "rope_theta": entry(reader, "rope.freq_base")},
            "sliding_attention": locally,
        },
    }
    return Twin(Gemma3TextConfig, Gemma3ForCausalLM, settings, FOUR_NORMS, norms_from_one=True, change=_cap_scores)


def _cap_scores(model: PreTrainedModel) -> None:
    """Gemma 3's scores are capped if its configuration says so.

    transformers reads the cap and its eager attention computes it, but Gemma3Attention does not hand it on.
    """

    def with_cap(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        return args, kwargs | {"softcap": module.attn_logit_softcapping}

    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(with_cap, with_kwargs=True)


def converted(writer: GGUFWriter, c: Any) -> None:
    """Nor of local layers or of their base."""
    from gguf import RopeScalingType

    rope = c.rope_parameters["full_attention"]
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.head_dim)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_scaling_type(RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_sliding_window(c.sliding_window)


def variants() -> Cases:
    wide = (512,) * 5 + (0, 512)
    return {
        "gemma3-wide-window": (
            replace(TINY_GEMMA3, tie_word_embeddings=False, windows=wide, rope_divisor=1.0, **NO_CAPS),
            TensorType.Q4_1,
        )
    }


FAMILY = Family(
    TINY_GEMMA3,
    TensorType.Q8_0,
    twin,
    variants=variants,
    # transformers reads no more of it
    transformers=NO_CAPS | {"head_dim": 256, "attention_scale": 1 / 16, "local_theta": 10_000.0, "rope_divisor": 1.0},
    llama_cpp=NO_CAPS | LLAMA_CPP | {"local_theta": 10_000.0},  # nor does it follow a period of its own
    llama_cpp_bound=GELU_BOUND,
    mlx=NO_CAPS | {"hidden_size": 64},  # it scales embeddings by the root of the width in bf16,
    hf={
        "gemma3": {
            "num_hidden_layers": 7,  # the sixth has no window
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "sliding_window": 8,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        }
    },
    hf_type="gemma3_text",
    converted=converted,
)
