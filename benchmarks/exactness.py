"""How exact a gradient is, tensor by tensor: ours and PyTorch's beside autograd's in float64 on a real model."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.gradients import TEXT

if TYPE_CHECKING:
    from benchmarks.place import Place
    from benchmarks.results import Row

COMPUTES = ("fp32", "int16", "bf16")  # ours
DTYPES = ("float32", "bfloat16")  # PyTorch's
STD = 0.02  # of B, relative to A: B is zero in a new adapter, and the gradients of A with it


def rows(place: Place) -> dict[str, Callable[[], Row]]:
    """A row for each of our computes, and for PyTorch with PEFT in float32 and bf16. The truth is kept between them."""

    @cache
    def setting() -> Any:
        return _setting(place.chat_model)

    found = {f"ours-{name}": partial(_ours, setting, name) for name in COMPUTES}
    return found | {f"peft-{name}": partial(_peft, setting, name) for name in DTYPES}


def _setting(name: str) -> Any:
    """Path, reference model, adapter, tokens, and the gradient in float64."""
    import numpy as np
    import torch
    from tests.methods.support import autograd
    from tests.support.oracle import random_adapter, reference_model

    from featherback.data.tokenizers.loader import load_tokenizer
    from featherback.models.hub.locate import locate

    path = locate(name)
    reference, tokens = reference_model(path), list(load_tokenizer(path).encode(TEXT))
    drawn = random_adapter(reference, 8)
    state = {name: a * np.float32(STD if ".lora_B." in name else 1) for name, a in drawn.items()}
    return path, reference, state, tokens, autograd(reference, state, tokens, torch.float64)


def _ours(setting: Callable[[], Any], compute: str) -> Row:
    from tests.methods.support import ours

    from featherback import models

    path, _, state, tokens, truth = setting()
    return _row(ours(models.load(path), state, [tokens], compute=compute), truth, path.name, len(tokens))


def _peft(setting: Callable[[], Any], dtype: str) -> Row:
    import torch
    from tests.methods.support import autograd

    path, reference, state, tokens, truth = setting()
    return _row(autograd(reference, state, tokens, getattr(torch, dtype)), truth, path.name, len(tokens))


def _row(found: Any, truth: Any, model: str, tokens: int) -> Row:
    from tests.methods.support import cosines, errors

    error = sorted(errors(found.grads, truth.grads).values())
    cosine = sorted(cosines(found.grads, truth.grads).values())
    return {
        "model": model,
        "tokens": tokens,
        "tensors": len(error),
        "error_median": float(f"{median(error):.3g}"),
        "error_worst": float(f"{error[-1]:.3g}"),
        "cosine_median": round(median(cosine), 7),
        "cosine_worst": round(cosine[0], 7),
    }
