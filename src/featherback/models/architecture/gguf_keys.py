"""Metadata of a GGUF file, read with their types checked."""

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback.engine.formats.gguf import SCALARS, GGUFFile
from featherback.engine.formats.store import floats
from featherback.engine.formats.types import TensorInfo
from featherback.errors import FeatherbackError, shown

SCALING_TYPE, SCALING_FACTOR = "rope.scaling.type", "rope.scaling.factor"
ROTARY_DIM = "rope.dimension_count"
THETA, LOCAL_THETA = "rope.freq_base", "rope.freq_base_swa"
USUAL_THETA = 10_000.0  # where the file does not say

# Keys that change what a model computes in ways Featherback does not follow, and the values accepted.
NEUTRAL: dict[str, tuple[float | str, ...]] = {
    "expert_count": (0,),
    "attention.causal": (True,),
    "attention.scale": (0,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.temperature_scale": (0,),
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "embedding_scale": (0, 1),
    "residual_scale": (0, 1),
    "logit_scale": (0, 1),
    "use_parallel_residual": (False,),
    "pooling_type": (0,),
    "rope.scale_linear": (0, 1),
    "rope.scaling.attn_factor": (0, 1),
    "rope.scaling.yarn_log_multiplier": (0,),
}


class GGUFKeys:
    """Typed access to `<architecture>.<key>` in a file's metadata, with errors that name the key."""

    def __init__(self, file: GGUFFile, architecture: str) -> None:
        self.file, self.architecture = file, architecture

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number; FeatherbackError if it is missing without a default, or not a whole number."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(key, value, "a whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number; FeatherbackError if it is missing without a default, or not a number."""
        value = self._value(key, default)
        if isinstance(value, (bool, str)):
            raise self.wrong(key, value, "a number")
        return float(value)

    def text(self, key: str) -> str | None:
        """A string, None if it is missing; FeatherbackError if it is not a string."""
        value = self.file.metadata.get(f"{self.architecture}.{key}")
        if value is not None and not isinstance(value, str):
            raise self.wrong(key, value, "a string")
        return value

    def integers(self, key: str, count: int) -> list[int]:
        """A list of this many whole numbers, or one that stands for all."""
        full = f"{self.architecture}.{key}"
        if full not in self.file.arrays:
            return [self.integer(key)] * min(count, len(self.file.tensors))  # of a corrupt file, fewer
        info = self.file.arrays[full]
        if SCALARS.get(info.type, "?") not in "BbHhIiQq" or info.count != count:
            raise self.wrong(key, "a list", f"a list of {count} whole numbers")
        return [int(value) for value in self.file.array(full)]

    def flags(self, key: str, count: int) -> list[bool] | None:
        """A list of this many booleans, None if there is no list; FeatherbackError if it is another list."""
        full = f"{self.architecture}.{key}"
        if full not in self.file.arrays:
            return None
        info = self.file.arrays[full]
        if SCALARS.get(info.type) != "?" or info.count != count:
            raise self.wrong(key, "a list", f"a list of {count} booleans")
        return [bool(value) for value in self.file.array(full)]

    def linear_scaling(self) -> float:
        """What positions are divided by before they are rotated; FeatherbackError if they are scaled in another way."""
        factor, kind = self.number(SCALING_FACTOR, 0) or 1.0, self._value(SCALING_TYPE, "linear")
        if kind == "none":
            return 1.0
        if kind != "linear" and factor != 1:
            raise self.wrong(SCALING_TYPE, kind, "only 'linear'")
        return factor

    def tensor(self, name: str, dimensions: int) -> TensorInfo:
        """A tensor with this many dimensions, from which the configuration is read."""
        info = self.file.tensors.get(name)
        if info is None:
            raise FeatherbackError(f"{self.file.path} has no tensor {name}; it does not hold a whole model.")
        if len(info.shape) != dimensions:
            raise FeatherbackError(f"Tensor {name} of {self.file.path} has the wrong shape {info.shape}.")
        return info

    def vector(self, name: str, count: int) -> NDArray[np.float32]:
        """The values of a tensor (count,), copied."""
        info = self.tensor(name, 1)
        if info.shape != (count,):
            raise FeatherbackError(f"Tensor {name} of {self.file.path} has shape {info.shape}, not ({count},).")
        return floats(self.file, name).copy()

    def _value(self, key: str, default: Any) -> Any:
        full = f"{self.architecture}.{key}"
        if full in self.file.arrays:
            raise self.wrong(key, "a list", "one value for all layers")
        value = self.file.metadata.get(full, default)
        if value is None:
            raise FeatherbackError(f"{self.file.path} has no metadata key {full}.")
        return value

    def wrong(self, key: str, value: object, wanted: str) -> FeatherbackError:
        """The error of a key whose value Featherback cannot follow."""
        full = f"{self.architecture}.{key}"
        return FeatherbackError(
            f"The metadata key {full} of {self.file.path} is {shown(value)}; {wanted} is supported."
        )

    def refuse_unsupported(self, head_dim: int, followed: Collection[str]) -> None:
        """FeatherbackError for any key whose value would make the model compute something else than we do.

        `followed`: keys that the family reads itself.
        """
        for key, accepted in NEUTRAL.items():
            if key not in followed and self._value(key, accepted[0]) not in accepted:
                raise self.wrong(key, self._value(key, None), f"only {accepted[-1]!r}")
        theta = self.number(THETA, USUAL_THETA)
        if LOCAL_THETA not in followed and (local := self.number(LOCAL_THETA, theta)) != theta:
            raise self.wrong(LOCAL_THETA, local, f"only that of {THETA}, {theta:g},")
        for key in (ROTARY_DIM, "attention.value_length"):
            if key not in followed and (size := self.integer(key, head_dim)) != head_dim:
                raise self.wrong(key, size, f"only the head size {head_dim}")
