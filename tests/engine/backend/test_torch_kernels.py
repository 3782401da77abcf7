"""The Triton kernels of the PyTorch device against its plain operations, in Triton's interpreter."""

from __future__ import annotations

import os

import numpy as np
import pytest

from benchmarks.random_blocks import random_blocks

os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from featherback.engine.backend.torch_device import fused_units, fused_unpacking, units, unpacking  # noqa: E402

T, COLUMNS = 5, 1500


def test_unpacking() -> None:
    for kind in fused_unpacking.KERNELS:
        data = torch.from_numpy(np.array(random_blocks(np.random.default_rng(0), kind, 21, 0.1))).view(7, 3, -1)
        for part in (data, data[2:5, 1:3], data[1:2, :1]):
            wanted = unpacking.UNPACK[kind](part.reshape(-1, part.shape[-1])).view(len(part), -1)
            assert torch.equal(fused_unpacking.unpack(kind, part, torch.float32), wanted), kind


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("activation", fused_units.ACTIVATIONS)
def test_gated_units(activation: str, gated: bool) -> None:
    both, da = torch.randn(T, 2 * COLUMNS), torch.randn(T, COLUMNS)
    gate, up = both[:, :COLUMNS], both[:, COLUMNS:] if gated else None
    for a in (None, 2):
        found = []
        for module in (fused_units, units):
            arrays = [torch.zeros(T, COLUMNS) for _ in range(4)]
            module.glu(gate, up, arrays[3], activation)
            dup = arrays[1] if gated else None
            module.glu_backward(da, gate, up, arrays[0], dup, activation, None if a is None else arrays[a])
            found.append(arrays)
        torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("size", "groups"), [(96, 1), (24, 4)])
def test_norms(size: int, groups: int) -> None:
    x, dn, before = (torch.randn(T, size * groups) for _ in range(3))
    weight = torch.randn(size)
    for accumulate in (False, True):
        found = []
        for module in (fused_units, units):
            out, dx = before.clone(), before.clone()
            module.rms_norm(x, weight, 1e-5, out, accumulate=accumulate)
            module.rms_norm_backward(dn, x, weight, 1e-5, dx, accumulate=accumulate)
            found.append((out, dx))
        torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("inverse", [True, False])
def test_rotations(interleaved: bool, inverse: bool) -> None:
    for pairs in (12, 8):  # all 24 columns of a head, or some
        x, cos, sin = torch.randn(T, 72), torch.randn(T, pairs), torch.randn(T, pairs)
        wanted, out, in_place = torch.empty_like(x), torch.empty_like(x), x.clone()
        units.rope(x, cos, sin, wanted, 24, interleaved, inverse=inverse)
        fused_units.rope(x, cos, sin, out, 24, interleaved, inverse=inverse)
        fused_units.rope(in_place, cos, sin, in_place, 24, interleaved, inverse=inverse)
        torch.testing.assert_close([out, in_place], [wanted, wanted])
