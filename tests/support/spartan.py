"""SPARTAN written from the paper, for autograd: no tiles, every parent computed, the others' weights set to 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from featherback.nn.adapters.spartan import EPS, SpartanOptions


def memory(x: torch.Tensor, e: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: SpartanOptions) -> torch.Tensor:
    """Return y (..., D) from x (..., D), in the precision of the arguments."""
    n = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)
    logits = n @ e.T
    best = logits.topk(options.selected_parents, dim=-1)
    p = torch.zeros_like(logits).scatter(-1, best.indices, best.values.softmax(-1))
    z = (n @ k.T).unflatten(-1, (options.parents, options.own))
    a = (z / options.cell_temperature).softmax(-1)
    return x + (p.unsqueeze(-1) * a).flatten(-2) @ v


@contextmanager
def inserted(model: Any, state: Mapping[str, np.ndarray], options: SpartanOptions) -> Iterator[dict[str, torch.Tensor]]:
    """Inside, each layer of the transformers model that has values in `state` ends with its memory.

    Yields the values as tensors that collect gradients. A memory is a branch like attention: it reads the stream of
    Granite divided by the residual multiplier, and its output is multiplied by it.
    """
    factor = getattr(model.config, "residual_multiplier", 1.0)
    tensors = {name: torch.from_numpy(values.copy()).requires_grad_() for name, values in state.items()}
    handles = []
    for place in {name.rpartition(".")[0] for name in tensors}:
        own = [tensors[f"{place}.{part}"] for part in ("parents", "keys", "values")]
        layer = model.get_submodule(place.rpartition(".")[0])

        def after(_: Any, __: Any, out: Any, own: list[torch.Tensor] = own) -> Any:
            if isinstance(out, tuple):
                return (factor * memory(out[0] / factor, *own, options), *out[1:])
            return factor * memory(out / factor, *own, options)

        handles.append(layer.register_forward_hook(after))
    yield tensors
    for handle in handles:
        handle.remove()
