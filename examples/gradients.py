"""Compute exact gradients as NumPy arrays, and compare cheaper methods with them.

python gradients.py [MODEL]
"""

from __future__ import annotations

import sys

import numpy as np

import featherback as fb


def cosine(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
    """The cosine between two gradients, over all tensors."""
    dot = sum(float(np.vdot(a[name], b[name])) for name in a)
    norms = [np.sqrt(sum(float(np.vdot(x, x)) for x in each.values())) for each in (a, b)]
    return dot / (norms[0] * norms[1])


def main(model_name: str = "smollm2-135m") -> None:
    model = fb.load(model_name)
    adapter = fb.LoRA(model, rank=8, alpha=16, targets="all", seed=0)
    tokens = model.tokenizer.encode("A gradient is the direction in which a loss grows fastest.")

    loss, exact = fb.gradients(model, adapter, tokens, compute="fp32")
    print(f"loss {loss:.4f} nats per token, {len(exact)} tensors")
    name, gradient = next((name, g) for name, g in exact.items() if "lora_B" in name)
    print(f"{name}: shape {gradient.shape}, norm {np.linalg.norm(gradient):.3g}")

    # MeBP recomputes as gradient checkpointing does: the same gradients.
    # MeZO estimates them from two forward passes: nearly orthogonal to the truth.
    for method in ("mebp", "mezo"):
        _, other = fb.gradients(model, adapter, tokens, method=method, compute="fp32")
        print(f"{method}: cosine with MeSP {cosine(exact, other):.6f}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
