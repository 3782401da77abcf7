"""What the entries of mixtures of experts share: names, and the layout of transformers, which joins experts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tests.support.families import converter
from tests.support.families.twin import BLOCK, entry

if TYPE_CHECKING:
    from gguf import GGUFReader, GGUFWriter

EXPERTS: dict[str, Any] = {"experts": 7, "experts_used": 3, "expert_size": 256}
"""Tiny: an odd number of experts, several for each token."""


def names(module: str = "mlp", router: str = "gate") -> dict[str, str]:
    """Part of a block in the file: in the model, where gate and up of all experts are one tensor (see `joined`)."""
    found = {name: each for name, each in BLOCK.items() if name not in ("ffn_gate", "ffn_up", "ffn_down")}
    return found | {
        "ffn_gate_inp": f"{module}.{router}",
        "ffn_gate_exps": f"{module}.experts.gate",
        "ffn_up_exps": f"{module}.experts.up",
        "ffn_gate_up_exps": f"{module}.experts.gate_up",
        "ffn_down_exps": f"{module}.experts.down",
        "exp_probs_b": f"{module}.expert",
    }


def settings(reader: GGUFReader, used: str = "num_experts_per_tok", count: str = "num_experts") -> dict[str, Any]:
    return {
        used: entry(reader, "expert_used_count"),
        count: entry(reader, "expert_count"),
        "experts_implementation": "eager",
    }


def joined(state: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors as transformers names and joins them.

    gate_up_proj (E, 2 F, D) and down_proj of all experts, Granite's input_linear (2 F, D) of a shared expert.
    """
    import torch

    found, parts = dict[str, Any](), dict[str, dict[str, Any]]()
    for name, tensor in state.items():
        stem, _, part = name.removesuffix(".weight").rpartition(".")
        if stem.endswith((".experts", ".shared_mlp")):
            parts.setdefault(stem, {})[part] = tensor
        elif part == "shared_expert_gate":
            found[name] = tensor[None]
        else:
            found[name.replace(".expert.bias", ".expert_bias")] = tensor
    for stem, own in parts.items():
        both = own["gate_up"] if "gate_up" in own else torch.cat([own["gate"], own["up"]], dim=-2)
        routed = stem.endswith(".experts")
        found[f"{stem}.gate_up_proj" if routed else f"{stem}.input_linear.weight"] = both
        found[f"{stem}.down_proj" if routed else f"{stem}.output_linear.weight"] = own["down"]
    return found


def separate(state: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors of a model with gate and up apart, under names that llama.cpp's converter knows."""
    found = dict[str, Any]()
    in_turns = any(name.endswith("gate_up_proj_bias") for name in state)  # gpt-oss, with matrices (E, in, out)
    for name, tensor in state.items():
        name = name.replace("block_sparse_moe.router", "block_sparse_moe.gate")
        if in_turns and ".experts." in name:
            stem, _, part = name.partition(".experts.")
            kind, rows = ("bias", tensor) if part.endswith("_bias") else ("weight", tensor.transpose(1, 2))
            named = {"gate_proj": rows[:, ::2], "up_proj": rows[:, 1::2]} if "gate_up" in part else {"down_proj": rows}
            found |= {f"{stem}.experts.{each}.{kind}": rows.contiguous() for each, rows in named.items()}
            continue
        stem, mark, _ = name.partition(".experts.")
        if name.endswith(".experts.gate_up_proj"):
            stem = re.sub("block_sparse_moe|feed_forward", "mlp", stem)
            found[f"{stem}.experts.gate_proj"], found[f"{stem}.experts.up_proj"] = tensor.chunk(2, dim=1)
        elif mark:
            found[re.sub("block_sparse_moe|feed_forward", "mlp", name)] = tensor
        elif name.endswith(".shared_mlp.input_linear.weight"):
            stem = name.removesuffix("_mlp.input_linear.weight").replace(".shared", ".mlp.shared_expert")
            found[f"{stem}.gate_proj.weight"], found[f"{stem}.up_proj.weight"] = tensor.chunk(2)
        elif name.endswith(".shared_mlp.output_linear.weight"):
            found[name.replace(".shared_mlp.output_linear", ".mlp.shared_expert.down_proj")] = tensor
        elif name.endswith(".shared_expert_gate.weight"):
            found[name] = tensor[0]
        else:
            found[re.sub("[.]expert_bias$", ".expert_bias.bias", name)] = tensor
    return found


def converted(writer: GGUFWriter, c: Any) -> None:
    """The keys of a mixture of experts, besides the usual ones."""
    converter.usual(writer, c)
    counts(writer, c)


def counts(writer: GGUFWriter, c: Any) -> None:
    writer.add_expert_count(c.num_experts)
    writer.add_expert_used_count(c.num_experts_per_tok)
    if (size := getattr(c, "moe_intermediate_size", None)) is not None:
        writer.add_expert_feed_forward_length(size)
