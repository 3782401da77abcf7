"""AdamW, SGD and clipping against torch, layer by layer, in RAM and in files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.tiny_models import write_tiny

from featherback import models, optim
from featherback.adapters.lora import LoRA
from featherback.errors import FeatherbackError
from featherback.host.paged import PagedArray
from featherback.options import described

STEPS = 7
SETTINGS = {"weight_decay": 0.05}
"""Set where the rule has the option."""
REFERENCES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": lambda parameters, weight_decay: torch.optim.AdamW(
        parameters, lr=1.0, eps=1e-8, weight_decay=weight_decay
    ),
    "sgd": lambda parameters, weight_decay: torch.optim.SGD(parameters, lr=1.0, weight_decay=weight_decay),
}
"""The same optimiser by torch, from its parameters and those of SETTINGS that it has; the learning rate is set at every
step."""


@pytest.fixture
def adapter(tmp_path: Path) -> LoRA:
    return LoRA(models.load(write_tiny(tmp_path / "m.gguf")), rank=3, targets="q,down", seed=5)


def _rows(paged: PagedArray) -> np.ndarray:
    out = np.empty((paged.layers, paged.size), np.float32)
    for layer in range(paged.layers):
        paged.read(layer, out[layer])
    return out


def _random_gradients(adapter: LoRA, seed: int) -> PagedArray:
    parameters = adapter.parameters
    gradients = PagedArray(parameters.layers, parameters.size)
    rng = np.random.default_rng(seed)
    for layer in range(parameters.layers):
        gradients.write(layer, rng.standard_normal(parameters.size).astype(np.float32))
    return gradients


@pytest.mark.parametrize("in_files", [False, True])
@pytest.mark.parametrize("name", optim.RULES.names)
def test_steps_are_torchs(adapter: LoRA, tmp_path: Path, name: str, in_files: bool) -> None:
    start = torch.nn.Parameter(torch.from_numpy(_rows(adapter.parameters)))
    scale = 0.25
    settings = {option: SETTINGS[option] for option in SETTINGS.keys() & described(optim.RULES[name]).keys()}
    optimizer = optim.create(name, adapter.parameters, settings, place=tmp_path if in_files else None)
    theirs = REFERENCES[name]([start], **settings)
    for step in range(STEPS):
        lr = 0.01 * (step + 1)
        gradients = _random_gradients(adapter, seed=step)
        optimizer.step(gradients, lr, grad_scale=scale)
        start.grad = torch.from_numpy(_rows(gradients)) * scale
        theirs.param_groups[0]["lr"] = lr
        theirs.step()
    np.testing.assert_allclose(_rows(adapter.parameters), start.detach().numpy(), rtol=2e-5, atol=2e-6)
    assert optimizer.steps == STEPS
    assert {path.stem for path in tmp_path.glob("*.f32")} == (
        set(optim.RULES[name].STATES) if in_files else set()
    )
    optimizer.close()


def test_options_reach_the_update(adapter: LoRA) -> None:
    start = torch.nn.Parameter(torch.from_numpy(_rows(adapter.parameters)))
    settings = {"beta1": 0.5, "beta2": 0.7, "eps": 1e-3}
    optimizer = optim.create("adamw", adapter.parameters, settings)
    theirs = torch.optim.AdamW([start], lr=0.01, betas=(0.5, 0.7), eps=1e-3, weight_decay=0.0)
    for step in range(STEPS):
        gradients = _random_gradients(adapter, seed=step)
        optimizer.step(gradients, 0.01)
        start.grad = torch.from_numpy(_rows(gradients))
        theirs.step()
    np.testing.assert_allclose(_rows(adapter.parameters), start.detach().numpy(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", optim.RULES.names)
def test_every_optimiser_declares_itself(name: str) -> None:
    rule = optim.OPTIONS.make(name, {})
    assert rule.LEARNING_RATE > 0
    assert set(described(type(rule))) == {field.name for field in fields(rule)}
    assert tuple(rule.state_sizes((3, 5))) == rule.STATES
    assert optim.state_arrays(name) == len(rule.STATES)


def test_clipping_is_torchs(adapter: LoRA) -> None:
    gradients = _random_gradients(adapter, seed=0)
    parameter = torch.nn.Parameter(torch.zeros(adapter.parameters.layers, adapter.parameters.size))
    parameter.grad = torch.from_numpy(_rows(gradients))
    norm = optim.global_norm(gradients)
    theirs = torch.nn.utils.clip_grad_norm_([parameter], max_norm=0.5)
    assert norm == pytest.approx(theirs.item(), rel=1e-6)
    assert optim.clip_scale(norm, 0.5) * norm == pytest.approx(
        torch.linalg.norm(parameter.grad).item(), rel=1e-5
    )


def test_small_gradients_are_not_scaled_up_and_zero_means_off() -> None:
    assert optim.clip_scale(0.5, 1.0) == 1
    assert optim.clip_scale(0.0, 1.0) == 1
    assert optim.clip_scale(100.0, 0.0) == 1
    assert optim.clip_scale(4.0, 1.0) == 0.25


def test_unknown_optimizer(adapter: LoRA) -> None:
    with pytest.raises(FeatherbackError, match="'adagrad'"):
        optim.create("adagrad", adapter.parameters)
