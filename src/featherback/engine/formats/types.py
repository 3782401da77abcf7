"""Number formats of stored tensors, with ggml's ids and block layouts (csrc/quant/formats.h lists them)."""

from dataclasses import dataclass

from featherback._native import TensorType
from featherback.errors import FeatherbackError

# Formats that exist but are not supported. They are listed so that the error can name them.
FOREIGN = {
    9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip


OWN = (TensorType.AFFINE8, TensorType.TERNARY)
"""Formats that are not ggml's. Only the files of `models.converted` contain them."""
_BY_ID = {int(kind): kind for kind in TensorType}


def tensor_type(ggml_id: int, tensor: str, own: bool = False) -> TensorType:
    """Return the format with this ggml id. Raises FeatherbackError, naming tensor and format, if it is not supported.

    `own`: whether the file may use the formats in OWN.
    """
    kind = _BY_ID.get(ggml_id)
    if kind is None or (kind in OWN and not own):
        name = FOREIGN.get(ggml_id, f"with ggml id {ggml_id}")
        known = " ".join(sorted(t.name for t in TensorType if t not in OWN))
        raise FeatherbackError(f"Tensor {tensor} has the type {name}, which is not supported (supported: {known}).")
    return kind


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """The place and the type of a tensor in its file."""

    name: str
    type: TensorType
    shape: tuple[int, ...]  # NumPy order: (rows, cols), or (n,)
    offset: int  # bytes from the start of the file
    nbytes: int
