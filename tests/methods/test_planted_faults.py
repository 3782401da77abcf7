"""The check against autograd finds a block that is composed wrongly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from featherback import models
from featherback.layers.block import rotaries
from featherback.models.model import Model
from tests.methods.conftest import Twins
from tests.methods.test_exact_gradients import check, draw


def with_config(**changes: object) -> Callable[[Model], None]:
    """The blocks of another configuration."""

    def plant(model: Model) -> None:
        model.blocks = model.family.blocks(replace(model.config, **changes))  # type: ignore[arg-type]
        model.rotaries = rotaries(model.blocks)

    return plant


def without_norm_of_heads(model: Model) -> None:
    """Queries and keys go into the rotation as they are."""
    for block in model.blocks:
        block.attention.qk_norm = False
        for name in ("q_norm", "k_norm"):
            block.vectors.pop(name, None)


def scores_scaled_by(scale: float) -> Callable[[Model], None]:
    """Scores with another scale."""

    def plant(model: Model) -> None:
        for block in model.blocks:
            block.attention.scale = scale

    return plant


FAULTS: dict[str, tuple[str, Callable[[Model], None]]] = {
    "no fault": ("mistral-window", with_config()),
    "window too long by one": ("mistral-window", with_config(windows=(8, 8))),
    "window too short by one": ("mistral-window", with_config(windows=(6, 6))),
    "window too long by one in the last layer": ("qwen2-late-window", with_config(windows=(0, 12, 13))),
    "window in another layer": ("qwen2-late-window", with_config(windows=(12, 0, 12))),
    "no norm of heads": ("qwen3", without_norm_of_heads),
    "head size of hidden_size / heads in the scale": ("qwen3", scores_scaled_by(24**-0.5)),
}
"""Name: the model's, and what is done to it."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(all_twins: dict[str, Twins], name: str) -> None:
    case, plant = FAULTS[name]
    twins = all_twins[case]
    model = models.load(twins.path)
    plant(model)
    faulty, sequences = replace(twins, model=model), draw((33,), model.config.vocab_size)
    if name == "no fault":
        check(faulty, "mesp", sequences)
    else:
        with pytest.raises(AssertionError):
            check(faulty, "mesp", sequences)
