"""Gradients of our methods, and their comparison with others'. Needs no PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from featherback import methods
from featherback.data.batch import Batch
from featherback.engine.host.paged import PagedArray
from featherback.methods.base import FIRST, Draw, Options
from featherback.methods.memory.plan import Plan
from featherback.models.adapter import LoRA
from featherback.models.model import Model
from featherback.nn.block import adaptable
from featherback.nn.objectives.base import Objective
from featherback.nn.objectives.next_token import NEXT_TOKEN

MAGNITUDE = "lora_magnitude_vector"
State = dict[str, np.ndarray]
Labels = Sequence[Sequence[int] | None]

ALPHA = 16.0
VANISHED = 2.0**-19
"""Relative to the largest gradient's norm: allowed where autograd has exactly zero (a token that sees only itself:
do . v and do . o are the same sum, computed by two kernels in two orders)."""


@dataclass(frozen=True)
class Result:
    loss: float  # mean over the supervised tokens, or over the examples of preferences
    grads: State


def adapter_of(model: Model, state: Mapping[str, np.ndarray]) -> LoRA:
    """Return the adapter of `model` with values `state` (Hugging Face names).

    They determine rank, targets and layers.
    """
    rank = next(a.shape[0] for name, a in state.items() if ".lora_A." in name)
    modules = {name.split(".lora_")[0].rsplit(".", 1)[-1] for name in state}
    names = model.naming.modules
    targets = [part for part in adaptable(model.blocks) if names[part].split(".")[-2] in modules]
    layers = {int(name.split(".layers.")[1].split(".")[0]) for name in state}
    dora = any(name.endswith(MAGNITUDE) for name in state)
    adapter = LoRA(model, rank, ALPHA, targets, dora=dora, layers=sorted(layers))
    adapter.load_state(dict(state))
    return adapter


def ours(
    model: Model,
    state: Mapping[str, np.ndarray],
    sequences: Sequence[Sequence[int]],
    labels: Labels | None = None,
    compute: str = "fp32",
    method: str = "mesp",
    folder: Path | None = None,
    dropout: float = 0.0,
    draw: Draw = FIRST,
    options: Options | None = None,
    **plan: Any,
) -> Result:
    """Return the mean loss and its gradient. `plan`: fields of Plan that differ from the default."""
    batch = Batch.from_sequences(list(sequences), None if labels is None else list(labels))
    chosen = replace(Plan.default(model.config, tokens=batch.n_tokens, compute=compute), **plan)
    return with_plan(model, state, batch, chosen, method, folder, dropout, draw, options)


def with_plan(
    model: Model,
    state: Mapping[str, np.ndarray],
    batch: Batch,
    plan: Plan,
    method: str = "mesp",
    folder: Path | None = None,
    dropout: float = 0.0,
    draw: Draw = FIRST,
    options: Options | None = None,
    objective: Objective = NEXT_TOKEN,
) -> Result:
    """Return the mean loss of a batch and its gradient, under `plan`."""
    adapter = adapter_of(model, state)
    adapter.dropout = dropout
    place = folder / "gradients.f32" if folder is not None and plan.states == "file" else None
    gradients = PagedArray(adapter.parameters.layers, adapter.layer_size, place)
    gradients.clear()
    at_work = methods.create(method, model, adapter, plan, folder, options, objective=objective)
    total = at_work.gradients(batch, 1 / batch.n_terms, gradients, draw)
    at_work.close()
    found = adapter.state(gradients)
    gradients.close()
    return Result(total / batch.n_terms, found)


def errors(found: State, truth: State, vanished: float = VANISHED) -> dict[str, float]:
    """Return each tensor's relative error in the Euclidean norm. Where the truth is zero, the tensor must nearly be."""
    assert found.keys() == truth.keys()
    largest = max(float(np.linalg.norm(t)) for t in truth.values())
    assert np.isfinite(largest)
    assert largest > 0
    relative = {}
    for name, expected in truth.items():
        norm = float(np.linalg.norm(expected))
        distance = float(np.linalg.norm(found[name].astype(np.float64) - expected))
        if norm == 0:
            assert distance < vanished * largest, f"{name} should vanish, its norm is {distance:.3g}"
        else:
            relative[name] = distance / norm
    assert np.isfinite(list(relative.values())).all()
    return relative


def cosines(found: State, truth: State) -> dict[str, float]:
    """Return each tensor's cosine to its truth, in float64."""
    return {
        name: float(np.vdot(found[name].astype(np.float64), expected))
        / float(np.linalg.norm(found[name].astype(np.float64)) * np.linalg.norm(expected))
        for name, expected in truth.items()
    }


def assert_close(found: Result, truth: Result, bound: float) -> None:
    """Require loss and every tensor within a relative `bound`."""
    assert abs(found.loss - truth.loss) <= bound * abs(truth.loss)
    name, worst = max(errors(found.grads, truth.grads).items(), key=lambda item: item[1])
    assert worst <= bound, f"{name}: relative error {worst:.3g}, more than {bound:.3g}"


def assert_equal(found: Result, other: Result) -> None:
    """Require equality to the last bit."""
    assert found.loss == other.loss
    assert found.grads.keys() == other.grads.keys()
    for name, array in found.grads.items():
        assert np.array_equal(array.view(np.uint32), other.grads[name].view(np.uint32)), name
