"""Featherback: fine-tune an LLM in tens of megabytes of memory, on the machine you already have.

import featherback as fb
model = fb.load("model.gguf")
run = fb.train(model, data="notes.jsonl", out="run/", steps=100, memory="96MB")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from featherback.errors import FeatherbackError
from featherback.version import __version__

if TYPE_CHECKING:
    from featherback.api import evaluate, export, gradients, load, merge, plan, train
    from featherback.exports.targets.base import Exported
    from featherback.model import Model
    from featherback.models.adapter import LoRA
    from featherback.runs.callback import Callback
    from featherback.runs.evaluation import Evaluation
    from featherback.runs.run import Run

__all__ = [
    "Callback",
    "Evaluation",
    "Exported",
    "FeatherbackError",
    "LoRA",
    "Model",
    "Run",
    "__version__",
    "evaluate",
    "export",
    "gradients",
    "load",
    "merge",
    "plan",
    "train",
]

# Imported on first use (PEP 562), so that `import featherback` itself is fast.
_HOMES = {
    "Callback": "featherback.runs.callback",
    "Evaluation": "featherback.runs.evaluation",
    "Exported": "featherback.exports.targets.base",
    "LoRA": "featherback.models.adapter",
    "Model": "featherback.model",
    "Run": "featherback.runs.run",
    "evaluate": "featherback.api",
    "export": "featherback.api",
    "gradients": "featherback.api",
    "load": "featherback.api",
    "merge": "featherback.api",
    "plan": "featherback.api",
    "train": "featherback.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'featherback' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
