"""Gradients in float64 that are carried to a system without PyTorch: `python -m tests.support.carried_gradients`.

expect FOLDER    writes models, adapters, tokens and PyTorch's gradients in float64
compare FOLDER   prints the largest relative error of a tensor of ours in fp32, for each model
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from featherback import models
from tests.support.own_gradients import errors, ours

METHODS = ("mesp", "mebp")


def expect(folder: Path) -> None:
    """Write what `compare` reads. Needs PyTorch."""
    import torch

    from tests.methods.support import autograd
    from tests.support.oracle import random_adapter, reference_model
    from tests.support.tiny_models import TINY_GEMMA3, TINY_LLAMA, TINY_QWEN2, write_tiny

    for name, kind in (("llama", TINY_LLAMA), ("qwen2", TINY_QWEN2), ("gemma3", TINY_GEMMA3)):
        model = reference_model(write_tiny(folder / f"{name}.gguf", kind))
        state = random_adapter(model, 4, seed=1)
        tokens = np.random.default_rng(0).integers(0, model.config.vocab_size, 40)
        truth = autograd(model, state, tokens.tolist(), torch.float64)
        np.savez(folder / f"{name}.state.npz", **state)
        np.savez(folder / f"{name}.truth.npz", **truth.grads)
        (folder / f"{name}.json").write_text(json.dumps([truth.loss, tokens.tolist()]))


def compare(folder: Path) -> None:
    """Print the largest relative error of a tensor of each model."""
    worst = {}
    for path in sorted(folder.glob("*.gguf")):
        state, truth = (dict(np.load(path.with_suffix(f".{kind}.npz"))) for kind in ("state", "truth"))
        loss, tokens = json.loads(path.with_suffix(".json").read_text())
        for method in METHODS:
            found = ours(models.load(path), state, [tokens], method=method)
            of_loss = abs(found.loss - loss) / abs(loss)
            worst[f"{path.stem} {method}"] = max(of_loss, *errors(found.grads, truth).values())
    print(json.dumps(worst))


if __name__ == "__main__":
    {"expect": expect, "compare": compare}[sys.argv[1]](Path(sys.argv[2]))
