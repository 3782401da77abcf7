"""Gradients of our methods and of autograd at a chosen precision, and their comparison."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import PreTrainedModel

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
from tests.support.oracle import MAGNITUDE, PEFT_PREFIX

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


def autograd(
    model: PreTrainedModel,
    state: Mapping[str, np.ndarray],
    sequence: Sequence[int],
    dtype: torch.dtype,
    layers: Sequence[int] | None = None,
) -> Result:
    """Like the oracle's `reference`, with model and adapter in `dtype`. `model` itself is float32 again afterwards.

    `layers`: PEFT's layers_to_transform.
    """
    rank = next(a.shape[0] for name, a in state.items() if ".lora_A." in name)
    angles = {name: buffer.clone() for name, buffer in model.model.rotary_emb.named_buffers()}
    # A wider type gives the weights back unchanged; a copy of a real model would take gigabytes.
    converted = (copy.deepcopy(model) if dtype == torch.bfloat16 else model).to(dtype)
    _restore(converted, angles)
    targets = sorted({name.split(".lora_")[0].rsplit(".", 1)[-1] for name in state})
    chosen = None if layers is None else list(layers)
    config = LoraConfig(r=rank, lora_alpha=ALPHA, lora_dropout=0.0, target_modules=targets, layers_to_transform=chosen)
    peft = get_peft_model(converted, config).to(dtype).eval()
    _restore(converted, angles)
    trained = {
        name.removeprefix(PEFT_PREFIX).replace(".default.", "."): parameter
        for name, parameter in peft.named_parameters()
        if parameter.requires_grad
    }
    with torch.no_grad():
        for name, parameter in trained.items():
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(state[name])))
    tokens = torch.tensor([list(sequence)])
    logits = peft(input_ids=tokens, use_cache=False).logits[0, :-1]
    wide = logits.double() if dtype == torch.float64 else logits.float()
    loss = torch.nn.functional.cross_entropy(wide, tokens[0, 1:])
    loss.backward()
    found = Result(loss.item(), {name: p.grad.double().numpy().copy() for name, p in trained.items()})
    if converted is model:
        peft.unload()
        _restore(model.float(), angles)
    return found


def _restore(model: PreTrainedModel, angles: Mapping[str, torch.Tensor]) -> None:
    """Keep the angles as a float32 constant; transformers chooses the type of their tables."""
    for name, buffer in angles.items():
        setattr(model.model.rotary_emb, name, buffer.clone())


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
