"""Number formats of stored tensors, with the ids and block layouts of ggml."""

from dataclasses import dataclass
from enum import IntEnum

from featherback.errors import FeatherbackError


class TensorType(IntEnum):
    """A number format Featherback computes with; the value is its ggml id."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    BF16 = 30

    @property
    def block_size(self) -> int:
        """Weights that share one block (1 for plain floats)."""
        return _BLOCKS[self][0]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return _BLOCKS[self][1]

    def row_bytes(self, cols: int) -> int:
        """Bytes of a row of `cols` weights; FeatherbackError if they do not fill whole blocks."""
        size, nbytes = _BLOCKS[self]
        if cols % size:
            raise FeatherbackError(
                f"A row of {cols} weights does not fill whole {self.name} blocks of {size}."
            )
        return cols // size * nbytes


_BLOCKS: dict[TensorType, tuple[int, int]] = {  # (weights, bytes) a block
    TensorType.F32: (1, 4),
    TensorType.F16: (1, 2),
    TensorType.BF16: (1, 2),
    TensorType.Q4_0: (32, 18),
    TensorType.Q4_1: (32, 20),
    TensorType.Q5_0: (32, 22),
    TensorType.Q5_1: (32, 24),
    TensorType.Q8_0: (32, 34),
    TensorType.Q4_K: (256, 144),
    TensorType.Q5_K: (256, 176),
    TensorType.Q6_K: (256, 210),
}

# Formats that exist but are not supported: known only so that the refusal can name them.
_FOREIGN = {
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64",
    28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip


def tensor_type(ggml_id: int, tensor: str) -> TensorType:
    """The format with this ggml id; FeatherbackError naming tensor and format if it is not supported."""
    try:
        return TensorType(ggml_id)
    except ValueError:
        name = _FOREIGN.get(ggml_id, f"with ggml id {ggml_id}")
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
