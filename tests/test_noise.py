"""The random numbers behind an adapter's start, a data order and MeZO's directions."""

import tracemalloc

import numpy as np
import pytest

from featherback.noise import PIECE, bits, fill_normal, normal, splitmix, uniform


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
