"""Read the metadata of a GGUF file and check its types."""

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback.engine.formats.gguf import SCALARS, GGUFFile
from featherback.engine.formats.store import floats
from featherback.engine.formats.types import TensorInfo
from featherback.errors import FeatherbackError, excerpt

SCALING_TYPE, SCALING_FACTOR = "rope.scaling.type", "rope.scaling.factor"
ROTARY_DIM = "rope.dimension_count"
THETA, LOCAL_THETA = "rope.freq_base", "rope.freq_base_swa"
USUAL_THETA = 10_000.0  # if the file does not state it

# Keys whose effect Featherback does not implement, with the values that have no effect.
NEUTRAL: dict[str, tuple[float | str, ...]] = {
    "expert_count": (0,),
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
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
    """Typed access to the metadata `<architecture>.<key>` of a file. All errors name the key."""

    def __init__(self, file: GGUFFile, architecture: str) -> None:
        self.file, self.architecture = file, architecture

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a whole number. Raises FeatherbackError if it has another type, or is missing without a default."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(key, value, "a whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a number. Raises FeatherbackError if it has another type, or is missing without a default."""
        value = self._value(key, default)
        if isinstance(value, (bool, str)):
            raise self.wrong(key, value, "a number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """Return a boolean. Raises FeatherbackError if it has another type."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, value, "True or False")
        return value

    def text(self, key: str) -> str | None:
        """Return a string, or None if the key is missing. Raises FeatherbackError if it is not a string."""
        value = self.file.metadata.get(f"{self.architecture}.{key}")
        if value is not None and not isinstance(value, str):
            raise self.wrong(key, value, "a string")
        return value

    def integers(self, key: str, count: int) -> list[int]:
        """Return `count` whole numbers. The file may hold a list, or one number for all."""
        full = f"{self.architecture}.{key}"
        if full not in self.file.arrays:
            return [self.integer(key)] * min(count, len(self.file.tensors))  # the count of a corrupt file may be huge
        info = self.file.arrays[full]
        if SCALARS.get(info.type, "?") not in "BbHhIiQq" or info.count != count:
            raise self.wrong(key, "a list", f"a list of {count} whole numbers")
        return [int(value) for value in self.file.array(full)]

    def flags(self, key: str, count: int) -> list[bool] | None:
        """Return a list of `count` booleans, or None if there is no list. Raises FeatherbackError for other lists."""
        full = f"{self.architecture}.{key}"
        if full not in self.file.arrays:
            return None
        info = self.file.arrays[full]
        if SCALARS.get(info.type) != "?" or info.count != count:
            raise self.wrong(key, "a list", f"a list of {count} booleans")
        return [bool(value) for value in self.file.array(full)]

    def linear_scaling(self) -> float:
        """Return the divisor of the positions (linear rotary scaling).

        Raises FeatherbackError if the scaling is not linear.
        """
        factor, kind = self.number(SCALING_FACTOR, 0) or 1.0, self._value(SCALING_TYPE, "linear")
        if kind == "none":
            return 1.0
        if kind != "linear" and factor != 1:
            raise self.wrong(SCALING_TYPE, kind, "'linear'")
        return factor

    def tensor(self, name: str, dimensions: int) -> TensorInfo:
        """Return a tensor that the configuration depends on. Raises FeatherbackError unless it has these dimensions."""
        info = self.file.tensors.get(name)
        if info is None:
            raise FeatherbackError(f"{self.file.path} has no tensor {name}; it does not hold a whole model.")
        if len(info.shape) != dimensions:
            raise FeatherbackError(
                f"Tensor {name} of {self.file.path} has shape {info.shape}; it must have {dimensions} dimensions."
            )
        return info

    def vector(self, name: str, count: int) -> NDArray[np.float32]:
        """Return a copy of a tensor's values, shape (count,). Raises FeatherbackError for another shape."""
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
        """The error about a key with an unsupported value. `wanted`: the supported values, in words."""
        full = f"{self.architecture}.{key}"
        return FeatherbackError(
            f"The metadata key {full} of {self.file.path} is {excerpt(value)}; supported: {wanted}."
        )

    def refuse_unsupported(self, head_dim: int, followed: Collection[str]) -> None:
        """Raise FeatherbackError if a key has an effect that Featherback does not implement.

        `followed`: keys that the family reads itself.
        """
        for key, accepted in NEUTRAL.items():
            if key not in followed and self._value(key, accepted[0]) not in accepted:
                raise self.wrong(key, self._value(key, None), repr(accepted[-1]))
        theta = self.number(THETA, USUAL_THETA)
        if LOCAL_THETA not in followed and (local := self.number(LOCAL_THETA, theta)) != theta:
            raise self.wrong(LOCAL_THETA, local, f"{theta:g}, the value of {THETA}")
        for key in (ROTARY_DIM, "attention.value_length"):
            if key not in followed and (size := self.integer(key, head_dim)) != head_dim:
                raise self.wrong(key, size, f"{head_dim}, the head size")
