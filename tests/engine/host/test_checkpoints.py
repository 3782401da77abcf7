from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.bf16 import to_bf16

from featherback.engine import backend
from featherback.engine.host.checkpoints import Checkpoints
from featherback.errors import FeatherbackError

F32, BF16 = np.dtype(np.float32), np.dtype(np.uint16)


@pytest.mark.parametrize("place", ["ram", "file"])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=["fp32", "bf16"])
def test_what_is_saved_comes_back_rounded(tmp_path: Path, place: str, dtype: np.dtype[Any]) -> None:
    rng = np.random.default_rng(0)
    checkpoints = Checkpoints(backend.of("fp32"), 3, 20, 7, dtype, None if place == "ram" else tmp_path)
    inputs = [rng.standard_normal((n, 7)).astype(np.float32) for n in (20, 1, 13)]
    for layer, x in enumerate(inputs):
        checkpoints.save(layer, x, 0, np.empty(x.shape, dtype))
    for layer in (2, 1, 0):
        out = np.empty(inputs[layer].shape, dtype)
        checkpoints.load(layer, out, 0)
        assert np.array_equal(out, inputs[layer] if dtype == F32 else to_bf16(inputs[layer]))
    checkpoints.close()
    assert not any(tmp_path.iterdir())


def test_an_unusable_folder(tmp_path: Path) -> None:
    with pytest.raises(FeatherbackError, match=r"Cannot keep checkpoints in .*none: No such file"):
        Checkpoints(backend.of("fp32"), 1, 1, 1, F32, tmp_path / "none")


def test_closed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(backend.of("fp32"), 1, 2, 2, F32, tmp_path)
    checkpoints.close()
    with pytest.raises(ValueError, match="closed"):
        checkpoints.load(0, np.empty((2, 2), np.float32), 0)
