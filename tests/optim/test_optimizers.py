"""AdamW, SGD and clipping against torch, layer by layer, in RAM and in files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from featherback import models, optim
from featherback.core.options import described
from featherback.engine.host.paged import PagedArray
from featherback.errors import FeatherbackError
from featherback.models.adapter import LoRA
from featherback.nn.slots import SlotTable
from tests.optim.adalomo import adalomo
from tests.optim.adamw8bit import AdamW8bit
from tests.optim.apollo import apollo_full, apollo_mini
from tests.optim.mlorc import mlorc
from tests.optim.paged import as_rows
from tests.optim.per_tensor import PerTensor, adafactor, lion, lomo
from tests.support.tiny_models import write_tiny

STEPS = 7
SETTINGS = {"weight_decay": 0.05, "clip_value": 0.2, "update_gap": 3}
"""Set where the rule has the option."""
REFERENCES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adafactor": partial(PerTensor, adafactor),
    "adalomo": partial(PerTensor, adalomo),
    "adamw": lambda parameters, slots=None, weight_decay=0.0: torch.optim.AdamW(
        parameters, lr=1.0, eps=1e-8, weight_decay=weight_decay
    ),
    "adamw8bit": AdamW8bit,
    "apollo": partial(PerTensor, apollo_full),
    "apollo_mini": partial(PerTensor, apollo_mini),
    "lion": partial(PerTensor, lion),
    "lomo": partial(PerTensor, lomo),
    "mlorc": partial(PerTensor, mlorc),
    "sgd": lambda parameters, slots=None, weight_decay=0.0: torch.optim.SGD(
        parameters, lr=1.0, weight_decay=weight_decay
    ),
}
"""The same optimiser by torch, from its parameters and those of SETTINGS that it has; the learning rate is set at every
step."""


@pytest.fixture
def adapter(tmp_path: Path) -> LoRA:
    return LoRA(models.load(write_tiny(tmp_path / "m.gguf")), rank=3, targets="q,down", seed=5)


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
    start = torch.nn.Parameter(torch.from_numpy(as_rows(adapter.parameters)))
    scale = 0.25
    settings = {option: SETTINGS[option] for option in SETTINGS.keys() & described(optim.RULES[name]).keys()}
    optimizer = optim.create(
        name, adapter.parameters, adapter.layout.slots, settings, place=tmp_path if in_files else None
    )
    theirs = REFERENCES[name]([start], slots=adapter.layout.slots, **settings)
    for step in range(STEPS):
        lr = 0.01 * (step + 1)
        gradients = _random_gradients(adapter, seed=step)
        optimizer.step(gradients, lr, grad_scale=scale)
        start.grad = torch.from_numpy(as_rows(gradients)) * scale
        theirs.param_groups[0]["lr"] = lr
        theirs.step()
    np.testing.assert_allclose(as_rows(adapter.parameters), start.detach().numpy(), rtol=2e-5, atol=2e-6)
    assert set(optimizer.updates) == {STEPS}
    assert {path.stem for path in tmp_path.glob("*.f32")} == (set(optimizer.states) if in_files else set())
    optimizer.close()


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_loraplus_is_torchs_parameter_groups(adapter: LoRA, name: str) -> None:
    ratio, lr = 16.0, 0.01
    before = adapter.state()
    groups = {part: {k: torch.from_numpy(v) for k, v in before.items() if f".lora_{part}." in k} for part in "AB"}
    theirs = REFERENCES[name]([{"params": list(group.values())} for group in groups.values()])
    theirs.param_groups[0]["lr"], theirs.param_groups[1]["lr"] = lr, ratio * lr
    ours = optim.create(name, adapter.parameters, adapter.layout.slots, rate=partial(adapter.layout.rate, ratio))
    for step in range(STEPS):
        gradients = _random_gradients(adapter, seed=step)
        ours.step(gradients, lr)
        grads = adapter.state(gradients)
        for group in groups.values():
            for key, value in group.items():
                value.grad = torch.from_numpy(grads[key])
        theirs.step()
    after = adapter.state()
    for key, value in (groups["A"] | groups["B"]).items():
        np.testing.assert_allclose(after[key], value.numpy(), rtol=2e-5, atol=1e-5)
        assert np.linalg.norm(after[key] - before[key]) > 0


def test_options_reach_the_update(adapter: LoRA) -> None:
    start = torch.nn.Parameter(torch.from_numpy(as_rows(adapter.parameters)))
    settings = {"beta1": 0.5, "beta2": 0.7, "eps": 1e-3}
    optimizer = optim.create("adamw", adapter.parameters, adapter.layout.slots, settings)
    theirs = torch.optim.AdamW([start], lr=0.01, betas=(0.5, 0.7), eps=1e-3, weight_decay=0.0)
    for step in range(STEPS):
        gradients = _random_gradients(adapter, seed=step)
        optimizer.step(gradients, 0.01)
        start.grad = torch.from_numpy(as_rows(gradients))
        theirs.step()
    np.testing.assert_allclose(as_rows(adapter.parameters), start.detach().numpy(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", optim.RULES.names)
def test_every_optimiser_declares_itself(name: str) -> None:
    rule = optim.OPTIONS.make(name, {})
    assert rule.FULL_LEARNING_RATE > 0
    assert not rule.FOR_ADAPTERS or rule.LEARNING_RATE > 0
    assert set(described(type(rule))) == {field.name for field in fields(rule)}
    slots = SlotTable([{"a": (3, 5), "b": (7,)}, {"a": (3, 5)}])
    sizes = Counter(rule.state_sizes((3, 5))) + Counter(rule.state_sizes((7,)))
    assert optim.state_sizes(rule, slots) == sizes
    assert optim.step_bytes(rule, slots) >= 4 * (22 + 22 + sizes.total())


def test_clipping_is_torchs(adapter: LoRA) -> None:
    gradients = _random_gradients(adapter, seed=0)
    parameter = torch.nn.Parameter(torch.zeros(adapter.parameters.layers, adapter.parameters.size))
    parameter.grad = torch.from_numpy(as_rows(gradients))
    norm = optim.global_norm(gradients)
    theirs = torch.nn.utils.clip_grad_norm_([parameter], max_norm=0.5)
    assert norm == pytest.approx(theirs.item(), rel=1e-6)
    assert optim.clip_scale(norm, 0.5) * norm == pytest.approx(torch.linalg.norm(parameter.grad).item(), rel=1e-5)


def test_small_gradients_are_not_scaled_up_and_zero_means_off() -> None:
    assert optim.clip_scale(0.5, 1.0) == 1
    assert optim.clip_scale(0.0, 1.0) == 1
    assert optim.clip_scale(100.0, 0.0) == 1
    assert optim.clip_scale(4.0, 1.0) == 0.25


def test_unknown_optimizer(adapter: LoRA) -> None:
    with pytest.raises(FeatherbackError, match="'adagrad'"):
        optim.create("adagrad", adapter.parameters, adapter.layout.slots)
