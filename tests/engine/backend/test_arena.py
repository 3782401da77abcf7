import numpy as np
import pytest

from featherback.engine import kernels
from featherback.engine.backend.arena import ALIGNMENT, Arena, aligned

F32 = np.dtype(np.float32)


def test_arrays_do_not_overlap_and_are_aligned() -> None:
    arena = Arena(10_000)
    arrays = [arena.take("x", (3, 5)), arena.take("x", (7,), np.uint16), arena.take("x", (2, 2), np.float32)]
    starts = [a.__array_interface__["data"][0] for a in arrays]
    assert all((start - starts[0]) % ALIGNMENT == 0 for start in starts)
    for value, array in enumerate(arrays):
        array.fill(value)
    assert [a.flat[0] for a in arrays] == [0, 1, 2]


def test_a_frame_gives_back_what_was_taken_in_it() -> None:
    arena = Arena(1 << 16)
    arena.take("x", (10,))
    with arena.frame():
        inner = arena.take("x", (100,))
    again = arena.take("x", (100,))
    assert again.__array_interface__["data"][0] == inner.__array_interface__["data"][0]
    assert arena.high_water == aligned((10,), F32) + aligned((100,), F32)


def test_a_frame_ends_with_an_error_too() -> None:
    arena = Arena(1 << 12)
    with pytest.raises(MemoryError), arena.frame():
        arena.take("x", (10_000,))
    arena.take("x", (1000,))


def test_the_high_water_mark_is_the_largest_sum_of_live_arrays() -> None:
    arena = Arena(1 << 16)
    for size in (10, 1000, 20):
        with arena.frame():
            arena.take("x", (size,))
    assert arena.high_water == aligned((1000,), F32)


def test_no_more_than_planned() -> None:
    arena = Arena(256)
    arena.take("x", (48,))
    with pytest.raises(MemoryError, match="arena of 256 bytes has no room for x \\(32,\\) at 192"):
        arena.take("x", (32,))
    assert len(arena.take("x", (16,))) == 16  # the failed take took nothing


@pytest.mark.memory_figures
def test_an_untouched_arena_costs_nothing() -> None:
    before = kernels.memory_now()[0]
    arena = Arena(500_000_000)
    array = arena.take("x", (100, 1000))
    assert kernels.memory_now()[0] - before < 2_000_000
    array.fill(1)
    assert kernels.memory_now()[0] - before >= 400_000 - 4096 * 2
