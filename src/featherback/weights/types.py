"""Number formats of stored tensors, with the ids and block layouts of ggml (csrc/quant/formats.h lists them)."""

from dataclasses import dataclass

from featherback._native import TensorType
from featherback.errors import FeatherbackError

# Formats that exist but are not supported: known only so that the refusal can name them.
FOREIGN = {
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64",
    28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip


def tensor_type(ggml_id: int, tensor: str) -> TensorType:
    """The format with this ggml id; FeatherbackError naming tensor and format if it is not supported."""
    try:
        return TensorType(ggml_id)
    except ValueError:
        name = FOREIGN.get(ggml_id, f"with ggml id {ggml_id}")
        known = " ".join(sorted(t.name for t in TensorType))
        raise FeatherbackError(
            f"Tensor {tensor} has the type {name}, which is not supported (supported: {known})."
        ) from None


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies in its file."""

    name: str
    type: TensorType
    shape: tuple[int, ...]  # NumPy order: (rows, cols), or (n,)
    offset: int  # bytes from the start of the file
    nbytes: int
