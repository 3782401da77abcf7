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
    from featherback.api import classify, compare, evaluate, export, gradients, load, merge, open_run, plan, train
    from featherback.exports.formats import LoRA
    from featherback.exports.formats.base import Exported
    from featherback.model import Model
    from featherback.runs.callback import Callback
    from featherback.runs.comparing import Comparison
    from featherback.runs.evaluation import Evaluation
    from featherback.runs.run import Run

__all__ = [
    "Callback",
    "Comparison",
    "Evaluation",
    "Exported",
    "FeatherbackError",
    "LoRA",
    "Model",
    "Run",
    "__version__",
    "classify",
    "compare",
    "evaluate",
    "export",
    "gradients",
    "load",
    "merge",
    "open_run",
    "plan",
    "train",
]

# Imported on first use (PEP 562), so that `import featherback` itself is fast.
_HOMES = {
    "FeatherbackClassifier": "featherback.estimator",  # not in __all__, because it needs scikit-learn
    "Callback": "featherback.runs.callback",
    "Comparison": "featherback.runs.comparing",
    "Evaluation": "featherback.runs.evaluation",
    "Exported": "featherback.exports.formats.base",
    "LoRA": "featherback.exports.formats",
    "Model": "featherback.model",
    "Run": "featherback.runs.run",
    "classify": "featherback.api",
    "compare": "featherback.api",
    "evaluate": "featherback.api",
    "export": "featherback.api",
    "gradients": "featherback.api",
    "load": "featherback.api",
    "merge": "featherback.api",
    "open_run": "featherback.api",
    "plan": "featherback.api",
    "train": "featherback.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'featherback' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
