"""The projections an adapter can target, and their names in Hugging Face models."""

from collections.abc import Iterable

from featherback.errors import FeatherbackError

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
TARGETS = ATTENTION + MLP


def parse_targets(targets: str | Iterable[str]) -> tuple[str, ...]:
    """Targets in the order of TARGETS from "all", "q,v", "q_proj,down_proj" or a list of such names.

    FeatherbackError for an unknown name or for none at all.
    """
    given = targets.split(",") if isinstance(targets, str) else list(targets)
    names = [name.strip() for name in given if name.strip()]
    chosen: set[str] = set()
    for name in names:
        full = name if name.endswith("_proj") else f"{name}_proj"
        if name == "all":
            chosen.update(TARGETS)
        elif full in TARGETS:
            chosen.add(full)
        else:
            short = ", ".join(target.removesuffix("_proj") for target in TARGETS)
            raise FeatherbackError(f"Unknown LoRA target {name!r}; choose from {short}, or all.")
    if not chosen:
        raise FeatherbackError("No LoRA target is named; choose some projections, or all.")
    return tuple(target for target in TARGETS if target in chosen)


def hf_module(layer: int, target: str) -> str:
    """The Hugging Face name of a projection: "model.layers.3.self_attn.q_proj"."""
    if target not in TARGETS:
        raise ValueError(f"not a projection: {target}")
    return f"model.layers.{layer}.{'self_attn' if target in ATTENTION else 'mlp'}.{target}"
