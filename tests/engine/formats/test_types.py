import pickle

import gguf
import pytest

from featherback.engine.formats.types import FOREIGN, OWN, TensorType, tensor_type
from featherback.errors import FeatherbackError


@pytest.mark.parametrize("kind", [kind for kind in TensorType if kind not in OWN])
def test_ids_and_blocks_are_those_of_ggml(kind: TensorType) -> None:
    theirs = gguf.GGMLQuantizationType[kind.name]
    assert kind.value == theirs.value
    assert (kind.block_size, kind.block_bytes) == gguf.GGML_QUANT_SIZES[theirs]


def test_ids_are_looked_up() -> None:
    for kind in TensorType:
        assert tensor_type(kind.value, "blk.0.ffn_up.weight", own=True) is kind


def test_types_of_our_own_are_no_ones_else() -> None:
    assert not {int(kind) for kind in OWN} & {int(kind) for kind in gguf.GGMLQuantizationType}
    for kind in OWN:
        with pytest.raises(FeatherbackError, match=rf"ggml id {int(kind)}, which is not supported") as caught:
            tensor_type(int(kind), "blk.0.ffn_up.weight")
        assert kind.name not in str(caught.value)


def test_no_supported_type_is_named_as_foreign() -> None:
    assert not set(FOREIGN) & {int(kind) for kind in TensorType}
    assert not set(FOREIGN.values()) & set(TensorType.__members__)


def test_types_are_pickled_by_name() -> None:
    assert pickle.loads(pickle.dumps(list(TensorType))) == list(TensorType)


def test_row_bytes() -> None:
    assert TensorType.Q4_0.row_bytes(96) == 54
    assert TensorType.F16.row_bytes(7) == 14
    with pytest.raises(FeatherbackError, match=r"row of 48 weights.*Q4_0 blocks of 32"):
        TensorType.Q4_0.row_bytes(48)


@pytest.mark.parametrize("theirs", [t for t in gguf.GGMLQuantizationType if t.name not in TensorType.__members__])
def test_every_other_type_is_refused_by_name(theirs: gguf.GGMLQuantizationType) -> None:
    name_or_number = rf"{theirs.name}|ggml id {theirs.value}"  # a newer gguf may know newer types
    with pytest.raises(FeatherbackError, match=rf"blk\.0\.ffn_up\.weight.*({name_or_number})"):
        tensor_type(theirs.value, "blk.0.ffn_up.weight")
