"""Adapters with a trained head, and the same in transformers and PEFT."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from featherback import methods
from featherback.data.batch import Batch
from featherback.engine.host.paged import PagedArray
from featherback.methods.memory.plan import Plan
from featherback.models.adapter import Adapter
from featherback.models.form import Form
from featherback.models.model import Model
from featherback.nn.adapters import made
from featherback.nn.objectives.base import Objective
from tests.methods.support import Result
from tests.support.oracle import PEFT_PREFIX, State, random_adapter

RANK, ALPHA = 4, 16.0


def scoring_state(reference: PreTrainedModel, outputs: int, seed: int = 1) -> State:
    """Return random values of an adapter with a head of `outputs` scores."""
    rng, width = np.random.default_rng(seed), reference.config.hidden_size
    state = random_adapter(reference, RANK, seed=seed)
    return {**state, "score.weight": rng.normal(0, 0.3, (outputs, width)).astype(np.float32)}


def adapter_with(model: Model, state: Mapping[str, np.ndarray]) -> Adapter:
    """Return our adapter with these values."""
    kind = made({"rank": RANK, "alpha": ALPHA, "rslora": False, "dora": False})
    names = tuple(f"LABEL_{number}" for number in range(len(state["score.weight"])))
    adapter = Adapter(model, Form(kind, outputs=names))
    adapter.load_state(dict(state))
    return adapter


def ours(
    model: Model, state: State, batch: Batch, objective: Objective, method: str = "mesp", **plan: Any
) -> Result:  # fmt: skip
    """Return our mean loss and its gradient."""
    adapter = adapter_with(model, state)
    chosen = replace(Plan.default(model.config, tokens=batch.n_tokens, compute="fp32"), mlp_tile=256, **plan)
    gradients = PagedArray(adapter.parameters.layers, adapter.layer_size)
    at_work = methods.create(method, model, adapter, chosen, objective=objective)
    loss = at_work.gradients(batch, 1 / batch.n_terms, gradients)
    assert at_work.loss(batch, objective=objective) == loss
    at_work.close()
    return Result(loss / batch.n_terms, adapter.state(gradients))


def classifier(reference: PreTrainedModel, outputs: int) -> PreTrainedModel:
    """Return transformers' classifier with the weights of a causal model."""
    config = type(reference.config)(**{**reference.config.to_dict(), "num_labels": outputs})
    config._attn_implementation = "eager"
    found = AutoModelForSequenceClassification.from_config(config).float().eval()
    found.model.load_state_dict(reference.model.state_dict())
    return found


def with_state(found: PreTrainedModel, state: State) -> PeftModel:
    """Return PEFT's adapter of a classifier, whose head is in `modules_to_save`."""
    targets = sorted({name.split(".lora_")[0].rsplit(".", 1)[-1] for name in state if ".lora_" in name})
    config = LoraConfig(
        r=RANK, lora_alpha=ALPHA, target_modules=targets, modules_to_save=["score"], task_type="SEQ_CLS"
    )
    peft = get_peft_model(found, config).eval()
    trained = {public(name): each for name, each in peft.named_parameters() if each.requires_grad}
    assert trained.keys() == state.keys()
    with torch.no_grad():
        for name, parameter in trained.items():
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(state[name])))
    return peft


def public(name: str) -> str:
    """The name in files of a parameter."""
    return name.removeprefix(PEFT_PREFIX).replace("modules_to_save.default.", "").replace(".default.", ".")


def gradients(peft: PeftModel, loss: torch.Tensor) -> Result:
    """Return a loss and its gradients."""
    loss.backward()
    found = {public(name): each.grad.numpy().copy() for name, each in peft.named_parameters() if each.grad is not None}
    return Result(loss.item(), found)
