"""LOMO, AdaLomo, APOLLO and APOLLO-Mini against their authors' packages, which `make test-authors` fetches."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from zlib import crc32

import pytest
import torch

from featherback import optim
from featherback.core.noise import normal
from featherback.optim.rule import StepArgs
from tests.optim.steps import SHAPES, close, gradient, tensor_of

FOLDER = Path(__file__).parents[2] / "build" / "authors"
KEY, STEPS, GAP = (3, 1), 20, 7
Step = Callable[[float], None]
"""One step at a learning rate, from the parameter's gradient."""


@pytest.fixture(scope="module")
def packages() -> Any:
    """Make both importable: APOLLO's without the parts that need a GPU's libraries."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        package = ModuleType("apollo_torch")
        package.__path__ = [str(FOLDER / "apollo_torch")]
        patch.setitem(sys.modules, "apollo_torch", package)
        patch.setattr(torch.Tensor, "cuda", lambda self: self)  # where LOMO's authors have their states
        yield


class _Holder(torch.nn.Module):
    def __init__(self, p: torch.nn.Parameter) -> None:
        super().__init__()
        self.p = p


def lomo(p: torch.nn.Parameter) -> Step:
    from lomo_optim.lomo import Lomo

    theirs = Lomo(_Holder(p), weight_decay=0.05, clip_grad_value=0.4)

    def step(lr: float) -> None:
        theirs.lr = lr
        theirs.grad_func(0)

    return step


def adalomo(p: torch.nn.Parameter) -> Step:
    from lomo_optim.adalomo import AdaLomo

    theirs = AdaLomo(_Holder(p), weight_decay=0.05, loss_scale=None)

    def step(lr: float) -> None:
        theirs.lr = lr
        theirs.step_num += 1
        theirs.grad_func(0)

    return step


def apollo(p: torch.nn.Parameter, rank: int, scale: float, kind: str) -> Step:
    """Give them our random matrices: theirs come from torch's generator."""
    from apollo_torch.apollo import AdamW
    from apollo_torch.random_projector import GradientProjector

    class Projector(GradientProjector):  # type: ignore[misc]
        drawn = 0

        def get_orthogonal_matrix(self, weights: torch.Tensor, rank: int, type: str, seed: int) -> torch.Tensor:
            shape = (weights.shape[0], rank) if type == "left" else (rank, weights.shape[1])
            key = (crc32(b"apollo"), 0, self.drawn, *KEY)
            self.drawn += 1
            return torch.from_numpy(normal(key, shape[0] * shape[1]).reshape(shape)) / rank**0.5

    class Theirs(AdamW):  # type: ignore[misc]
        def _initialize_projector(self, group: dict[str, Any], state: dict[str, Any]) -> Projector:
            return Projector(group["rank"], update_proj_gap=group["update_proj_gap"])

    group: dict[str, Any] = {"params": [p]}
    if p.dim() == 2:
        group |= {"rank": rank, "update_proj_gap": GAP, "scale": scale, "scale_type": kind}
    theirs = Theirs([group])

    def step(lr: float) -> None:
        theirs.param_groups[0]["lr"] = lr
        theirs.step()

    return step


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("name", "make", "lr", "settings"),
    [
        ("lomo", lomo, 0.1, {"weight_decay": 0.05, "clip_value": 0.4}),
        ("adalomo", adalomo, 0.1, {"weight_decay": 0.05}),
        # Their decay comes after the step and ours, as PyTorch's, before it: there is none here.
        ("apollo", partial(apollo, rank=40, scale=1.0, kind="channel"), 0.01, {"update_gap": GAP}),
        ("apollo_mini", partial(apollo, rank=1, scale=128.0, kind="tensor"), 0.01, {"update_gap": GAP}),
    ],
)
def test_twenty_steps_are_the_authors(
    packages: None, name: str, make: Any, lr: float, settings: dict[str, Any], shape: str
) -> None:
    rule = optim.OPTIONS.make(name, settings)
    tensor = tensor_of(rule, SHAPES[shape])
    before = tensor.all_values.copy()
    theirs = torch.nn.Parameter(torch.from_numpy(before.copy()).squeeze(0))
    step_theirs = make(theirs)
    for step in range(1, STEPS + 1):
        tensor.all_gradient[...] = gradient(SHAPES[shape], step)
        rule.update(tensor, StepArgs(step, lr))
        theirs.grad = torch.from_numpy(tensor.all_gradient.copy()).reshape(theirs.shape)
        step_theirs(lr)
    close(before, tensor.all_values, theirs.data.numpy().reshape(before.shape))
