"""What the preparation of a run or an evaluation uses: how models are opened, data encoded, and memory measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from featherback import models
from featherback.core.terminal import print_error
from featherback.models.converted import UnconvertedWeights
from featherback.models.model import Model

if TYPE_CHECKING:
    from featherback.engine.host.machine import Baseline
    from featherback.runs.examples import Encode, Examples


class OpenedModel:
    """Opens the model of a command like `models.load`, but only once. `model`: the model, if it is open already."""

    def __init__(self, model: Model | None = None) -> None:
        self.model = model

    def __call__(self, path: str, quantize: str, without_converting: bool = False) -> Model:
        if self.model is None or (isinstance(self.model.store, UnconvertedWeights) and not without_converting):
            self.model = models.load(path, quantize, without_converting=without_converting)
        return self.model


@dataclass(frozen=True)
class Tools:
    """`open`: opens the model. `baseline`: the memory of the training process before it opens a model.

    `encode`: turns files into tokens. `examples`: examples from Python that replace files, under "train" and "eval".
    `note`: prints a message for the user.
    """

    open: OpenedModel
    baseline: Callable[[], Baseline]
    encode: Encode
    examples: Mapping[str, Examples] = field(default_factory=dict)
    note: Callable[[str], None] = print_error
