"""Write a trained model for other programs, and measure the rounding if its type changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from featherback.core.naming import argument
from featherback.errors import FeatherbackError
from featherback.exports.targets.base import WholeRequest, check_not_base
from featherback.exports.targets.report import cost_facts, cost_notes, type_counts
from featherback.exports.whole import copy_as
from featherback.models.model import Model

TRAINING = "the training"


def write_model(request: WholeRequest, out: Path) -> tuple[list[str], dict[str, Any]]:
    """Write the model to `out`, and return notes and figures. Raises FeatherbackError if that is not possible."""
    check_not_base(out, request.model)
    done = copy_as(request.model, out, request.kind, request.base)
    types, cost = type_counts(done.types), done.cost
    notes = [", ".join(f"{count} matrices as {name}" for name, count in types.items())]
    if not cost.merged:
        return [*notes, "the trained weights were copied byte for byte"], {"types": types}
    if request.base is not None:
        return [*notes, *cost_notes(cost, TRAINING)], {"types": types, **cost_facts(cost)}
    notes.append(
        f"rounding error: {cost.relative_error:.2%} of the weights (relative Frobenius norm); to measure how much of "
        f"{TRAINING} survives, name the model that it began with: {argument('model', 'BASE')}"
    )
    return notes, {"types": types, "relative_error": cost.relative_error}


def suffix(request: WholeRequest) -> str:
    """The part of a default file name that names the type."""
    return "" if request.kind is None else f"-{request.kind.name.lower()}"


def check_gguf(model: Model) -> None:
    """Raise FeatherbackError if the model is a Hugging Face folder, which Featherback cannot convert to GGUF."""
    if model.source != "gguf":
        raise FeatherbackError(
            f"{model.path} is a Hugging Face folder; make a GGUF of it with llama.cpp's convert_hf_to_gguf.py."
        )
