"""The random numbers behind an adapter's start, a data order and MeZO's directions."""

import tracemalloc
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from featherback.core import noise
from featherback.core.noise import PIECE, bits, fill_normal, normal, splitmix, uniform
from featherback.engine.backend.cpu import CPUOperations


def test_quantiles_are_the_normal_distributions() -> None:
    table, known = noise.quantiles(), NormalDist()
    assert table.shape == (1 << 16,)
    for number in (0, 1, 77, 1 << 10, 20_000, (1 << 15) - 1, 1 << 15, 65_000, 65_534, 65_535):
        assert table[number] == pytest.approx(known.inv_cdf((number + 0.5) / 65_536), rel=2e-3, abs=1e-4)
    values = table.astype(np.float64)
    assert values.mean() == pytest.approx(0, abs=1e-4)
    assert values.var() == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("corner", [(0, 0), (3, 7), (100, 1024)])
def test_added_normals_are_those_of_their_places(corner: tuple[int, int]) -> None:
    (top, left), shape, key = corner, (5, 1301), (2, 9)
    drawn = noise.numbers(key, range(top, top + shape[0]), range(left, left + shape[1]))
    out = np.full(shape, 3, np.float32)
    CPUOperations.add_normals(key, corner, -0.5, out)
    np.testing.assert_allclose(out, 3 - 0.5 * noise.quantiles()[drawn], rtol=1e-6)
    assert abs(np.corrcoef(out[0], out[1])[0, 1]) < 0.1
    assert out.std() == pytest.approx(0.5, rel=0.05)


def test_splitmix_is_the_published_generator() -> None:
    # The first outputs of SplitMix64 with seed 1234567, from its authors' reference code.
    golden = 0x9E3779B97F4A7C15
    states = np.array([(1234567 + i * golden) % 2**64 for i in range(3)], np.uint64)
    assert splitmix(states).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_uniform_numbers_are_uniform() -> None:
    x = uniform((3, 1), 200_001)
    assert x.dtype == np.float32
    assert x.min() >= 0
    assert x.max() < 1
    counts = np.histogram(x, 50, (0, 1))[0]
    assert ((counts - len(x) / 50) ** 2 / (len(x) / 50)).sum() < 95  # chi-squared, 49 degrees: p about 1e-4


def test_normal_numbers_are_normal() -> None:
    x = normal((5, 2), 200_001).astype(np.float64)
    assert len(x) == 200_001
    assert np.isfinite(x).all()
    assert abs(x.mean()) < 0.01
    assert abs(x.var() - 1) < 0.02
    assert abs((x**3).mean()) < 0.03
    assert abs((x**4).mean() - 3) < 0.1
    assert abs(np.corrcoef(x[:100_000], x[100_000:200_000])[0, 1]) < 0.015


@pytest.mark.parametrize("n", [1, 2, 2 * PIECE - 1, 2 * PIECE, 2 * PIECE + 1, 5 * PIECE + 7])
def test_normal_numbers_are_made_in_pieces(n: int) -> None:
    words = bits((5, 2), -(-n // 2))
    radius = np.sqrt(-2 * np.log(((words >> np.uint64(40)) + 1.0) * 2.0**-24))
    angle = (words & np.uint64(0xFFFFFF)) * (2 * np.pi * 2.0**-24)
    expected = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:n]
    np.testing.assert_allclose(normal((5, 2), n), expected, rtol=1e-5, atol=1e-5)


def test_normal_numbers_need_no_room_that_grows_with_them() -> None:
    out = np.empty(1_000_000, np.float32)
    tracemalloc.start()
    fill_normal((1,), out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50 * PIECE


def test_keys_are_independent_and_repeatable() -> None:
    assert np.array_equal(bits((1, 2), 9), bits((1, 2), 9))
    assert np.array_equal(bits((1, 2), 9)[:4], bits((1, 2), 4))
    different = [bits(key, 4).tolist() for key in ((1, 2), (2, 1), (1,), (1, 2, 0), (-1, 2))]
    assert len({tuple(words) for words in different}) == len(different)
    a, b = uniform((0, 0), 50_000), uniform((0, 1), 50_000)
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.02


@pytest.mark.parametrize("rate", [0.05, 0.5, 0.999])
def test_dropout_leaves_its_share(rate: float) -> None:
    left = _kept((7, 1), rate, (0, 0), (300, 1001))
    share = noise.dropped_share(rate)
    assert abs(share - rate) < 2**-16
    deviation = (share * (1 - share) / left.size) ** 0.5
    assert abs(1 - left.mean() - share) < 4 * deviation
    for axis in (0, 1):  # no row or column is special
        spread = left.mean(axis).std() / (share * (1 - share) / left.shape[axis]) ** 0.5
        assert 0.9 < spread < 1.1
    assert abs(np.corrcoef(left[1:].ravel(), left[:-1].ravel())[0, 1]) < 0.01
    assert abs(np.corrcoef(left[:, 1:].ravel(), left[:, :-1].ravel())[0, 1]) < 0.01


def test_what_dropout_leaves_depends_on_key_and_place_alone() -> None:
    whole = _kept((7, 1), 0.3, (0, 0), (90, 131))
    for top, left, rows, cols in [(0, 0, 1, 131), (3, 5, 87, 100), (89, 130, 1, 1), (10, 64, 50, 67)]:
        part = _kept((7, 1), 0.3, (top, left), (rows, cols))
        assert np.array_equal(part, whole[top : top + rows, left : left + cols])
    wide = _kept((7, 1), 0.3, (0, 0), (3, 40_000))  # a row of more than a piece
    assert np.array_equal(_kept((7, 1), 0.3, (2, 7), (1, 39_000))[0], wide[2, 7:39_007])
    assert not np.array_equal(_kept((7, 2), 0.3, (0, 0), (90, 131)), whole)


def _kept(*given: Any) -> np.ndarray:
    shape = given[3]
    found = np.zeros(shape, bool)
    for rows, left in noise.kept(*given):
        found[rows] = left
    return found
