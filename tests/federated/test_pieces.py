"""Adapters in few arrays: what is unpacked is what was packed, and nothing else is accepted."""

from __future__ import annotations

import numpy as np
import pytest

from featherback.errors import FeatherbackError
from featherback.federated.pieces import LEAST, Pieces

SHAPES = {"a": (3, 5), "b": (7,), "c": (LEAST // 2, 2), "d": (2, 2), "e": (LEAST + 1,), "f": (1, 4)}


def _tensors() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


def test_pieces_hold_tensors_in_order() -> None:
    pieces = Pieces(SHAPES)
    assert pieces.shapes == {"a to c": (22 + LEAST,), "d to e": (5 + LEAST,), "f": (4,)}
    tensors = _tensors()
    packed = dict(pieces.pack(dict(reversed(tensors.items()))))
    np.testing.assert_array_equal(packed["a to c"][15:22], tensors["b"])
    assert {name: each.shape for name, each in packed.items()} == pieces.shapes
    unpacked = pieces.unpack(packed)
    assert list(unpacked) == list(SHAPES)
    for name, each in tensors.items():
        np.testing.assert_array_equal(unpacked[name], each)


def test_a_mean_in_double_precision_becomes_float32() -> None:
    pieces = Pieces(SHAPES)
    packed = {name: each.astype(np.float64) for name, each in pieces.pack(_tensors())}
    assert {each.dtype for each in pieces.unpack(packed).values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize("wrong", [{}, {"f": np.zeros(5, np.float32)}, {"g": np.zeros(4, np.float32)}])
def test_other_tensors_are_rejected(wrong: dict[str, np.ndarray]) -> None:
    pieces = Pieces(SHAPES)
    packed = {name: each for name, each in pieces.pack(_tensors()) if name != "f"}
    with pytest.raises(FeatherbackError, match="The message holds another adapter"):
        pieces.unpack({**packed, **wrong})


def test_an_adapter_without_tensors_has_no_pieces() -> None:
    assert Pieces({}).shapes == {}
    assert Pieces({}).unpack(dict(Pieces({}).pack({}))) == {}
