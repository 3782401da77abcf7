"""What an optimiser declares and computes. It sees arrays of parameters, whatever they belong to."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from featherback import options

Float32 = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Rule(ABC):
    """An update rule. Its fields, each made by `options.option`, are the optimiser's options.

    FeatherbackError, naming the option, for a value that an option cannot have.
    """

    LEARNING_RATE: ClassVar[float]
    """The peak learning rate where none is named."""
    STATES: ClassVar[tuple[str, ...]] = ()
    """Names of what it remembers of every parameter from step to step; each begins as zeros."""

    def __post_init__(self) -> None:
        options.check(self)

    @classmethod
    def state_sizes(cls, shape: tuple[int, ...]) -> dict[str, int]:
        """State name -> float32 elements it has for a parameter of this shape: as many as the parameter."""
        return dict.fromkeys(cls.STATES, math.prod(shape))

    @abstractmethod
    def update(
        self,
        parameter: Float32,
        gradient: Float32,
        states: Sequence[Float32],
        step: int,
        lr: float,
        grad_scale: float,
    ) -> None:
        """Update `parameter` and `states` in place from `grad_scale * gradient`, all flat.

        `states` are in the order of STATES; `step` counts from 1.
        """
