"""Number formats of stored tensors, with the ids and block layouts of ggml (csrc/quant/formats.h lists them)."""

from dataclasses import dataclass

from featherback._native import TensorType
from featherback.errors import FeatherbackError

# Formats that exist but are not supported: known only so that the refusal can name them.
FOREIGN = {
    9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip


OWN = (TensorType.AFFINE8,)
"""Formats that are not ggml's: they stand in the files of `models.converted` alone."""
_BY_ID = {int(kind): kind for kind in TensorType}


def tensor_type(ggml_id: int, tensor: str, own: bool = False) -> TensorType:
    """The format with this ggml id; FeatherbackError naming tensor and format if it is not supported.

    `own`: whether the file may have those of OWN.
    """
    kind = _BY_ID.get(ggml_id)
    if kind is None or (kind in OWN and not own):
        name = FOREIGN.get(ggml_id, f"with ggml id {ggml_id}")
        known = " ".join(sorted(t.name for t in TensorType if t not in OWN))
        raise FeatherbackError(f"Tensor {tensor} has the type {name}, which is not supported (supported: {known}).")
    return kind


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies in its file."""

    name: str
    type: TensorType
    shape: tuple[int, ...]  # NumPy order: (rows, cols), or (n,)
    offset: int  # bytes from the start of the file
    nbytes: int
