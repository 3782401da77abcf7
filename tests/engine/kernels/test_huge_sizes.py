"""No size, count or shape that a caller can name makes a binding touch foreign memory, overflow or never end.

The sanitized builds (`make test-asan`) run this too, and would find a product that overflows without a crash.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.engine.kernels.native import REFERENCE, using

from featherback import _native
from featherback.engine import kernels
from featherback.engine.kernels import MAX_THREADS, MapGuard, Matrix, ReadAhead

HUGE = (2**31 - 1, 2**31, 2**32, 2**60, 2**61, 2**62, 2**63 - 1, -(2**63), -1)
EMPTY = ((0, 2**60), (2**60, 0), (0, 2**31))
REFUSALS = (ValueError, TypeError, IndexError, MemoryError, OverflowError)
F32 = 0


def f32(*shape: int) -> NDArray[Any]:
    return np.zeros(shape, np.float32)


def cu(*bounds: int) -> NDArray[np.int32]:
    return np.array(bounds, np.int32)


def codes(*shape: int) -> NDArray[np.uint8]:
    return np.zeros(shape, np.uint8)


def seeds(count: int) -> NDArray[np.uint32]:
    return np.zeros(count, np.uint32)


W = Matrix(codes(6 * 32 * 4), F32, 6, 32)
X, Y = f32(2, 32), f32(2, 6)
ATTENTION = {"q": f32(4, 16), "k": f32(4, 8), "v": f32(4, 8), "out": f32(4, 16), "lse": f32(2, 4)}
ATTENTION |= {"heads": 2, "kv_heads": 1, "cu_q": cu(0, 4), "window": 3}
HEADS = {"cu_q": cu(0, 4), "cu_k": cu(0, 4), "heads": 2, "kv_heads": 1, "head_dim": 8, "window": 3}
DELTA = {"q": f32(4, 8), "k": f32(4, 8), "v": f32(4, 8), "decay": f32(4, 2), "beta": f32(4, 2)}
DELTA |= {"k_heads": 1, "v_heads": 2, "tiled": False, "cu": cu(0, 4), "before": f32(2, 32)}
DELTA_SIZES = {"cu": cu(0, 4), "k_heads": 1, "v_heads": 2, "k_dim": 8, "v_dim": 4}
SIZES = {"tokens": 2, "inputs": 32, "rank": 3}
CACHED = {"type": F32, "heads": 2, "kv_heads": 1, "keys": 4, "window": 3, "first": 0, "last": 4}
MOMENTS = {"param": f32(2, 5), "grad": f32(2, 5), "lr": 0.1, "weight_decay": 0.0}
LOSS = {"reference": f32(2), "sum": f32(2), "target_logit": f32(2)}
TEXT = {"file": codes(64), "tokens": (0, 2), "types": cu(1, 1), "merges": (0, 0)}

GOOD: dict[str, dict[str, Any]] = {
    "linear": {"x": X, "w": W, "out": Y, "bias": f32(6), "h": f32(2, 3), "b": f32(3, 6)},
    "linear_backward": {"dy": Y, "w": W, "dx": X, "dh": f32(2, 3), "a": f32(3, 32)},
    "rounds": {"type": 2, "rows": 2},
    "lora_in": {"x": X, "a": f32(3, 32), "h": f32(2, 3)},
    "lora_gradient": {"dh": f32(2, 3), "x": X, "da": f32(3, 32)},
    "lora_in_parts": {"x": X, "parts": [(0, 2, f32(3, 32), 1.0)], "h": f32(2, 3)},
    "lora_out_parts": {"h": f32(2, 3), "parts": [(0, 2, f32(3, 6))], "out": Y},
    "linear_cost": {**SIZES, "outputs": 6, "bf16": False, "type": F32},
    "linear_backward_cost": {**SIZES, "outputs": 6, "bf16": False},
    "lora_in_cost": SIZES,
    "lora_gradient_cost": SIZES,
    "gather_rows": {"w": W, "ids": cu(0, 5), "out": X},
    "dequantize": {"w": W, "out": f32(6, 32)},
    "encode": {"x": X, "codes": codes(2, 34)},
    "decode": {"codes": codes(2, 34), "out": X},
    "attention": ATTENTION,
    "attention_backward": {
        **ATTENTION,
        **{"dout": f32(4, 16), "delta": f32(2, 4), "dq": f32(4, 16), "dk": f32(4, 8), "dv": f32(4, 8)},
    },
    "attention_cost": HEADS,
    "attention_backward_cost": HEADS,
    "delta_rule": {**DELTA, "y": f32(4, 8), "after": f32(2, 32)},
    "delta_rule_backward": {
        **DELTA,
        **{"dy": f32(4, 8), "dq": f32(4, 8), "dk": f32(4, 8), "dv": f32(4, 8), "ddecay": f32(4, 2)},
        **{"dbeta": f32(4, 2), "dafter": f32(2, 32), "dbefore": f32(2, 32)},
    },
    "delta_rule_cost": DELTA_SIZES,
    "delta_rule_backward_cost": DELTA_SIZES,
    "cache_rows": {
        **{"k": f32(4, 8), "v": f32(4, 8), "start": 0, "cache": codes(128 * 2 * 8 * 4), "type": F32},
        **{"kv_heads": 1, "first": 0},
    },
    "cached_attention": {
        **CACHED,
        **{"q": f32(4, 16), "cache": codes(128 * 2 * 8 * 4), "out": f32(4, 16), "scale": 1.0, "state": f32(4, 20)},
    },
    "cached_attention_cost": {**CACHED, "queries": 4, "head_dim": 8},
    "hadamard": {"x": X, "size": 32},
    "gate": {"z": X, "x": X, "out": X, "form": "silu"},
    "gate_backward": {"da": X, "z": X, "x": X, "dz": X, "dx": X, "form": "silu"},
    "rms_norm": {"x": X, "weight": f32(32), "eps": 1e-5, "out": X},
    "rms_norm_backward": {"dn": X, "x": X, "weight": f32(32), "eps": 1e-5, "dx": X},
    "layer_norm": {"x": X, "weight": f32(32), "bias": None, "eps": 1e-5, "out": X},
    "layer_norm_backward": {"dn": X, "x": X, "weight": f32(32), "eps": 1e-5, "dx": X},
    "rope": {"x": X, "cos": f32(2, 4), "sin": f32(2, 4), "out": X, "head_dim": 8, "interleaved": False},
    "glu": {"gate": X, "up": X, "out": X, "activation": "silu"},
    "glu_backward": {"da": X, "gate": X, "up": X, "dgate": X, "dup": X, "activation": "silu"},
    "slope_codes": {"x": X, "bounds": f32(3), "codes": codes(2, 16)},
    "slope_backward": {"da": X, "codes": codes(2, 16), "slopes": f32(4), "dz": X},
    "gated_recurrence": {"i": X, "f": X, "bound": f32(32), "state": f32(32), "h": X},
    "gated_recurrence_backward": {
        **{"dh": X, "i": X, "f": X, "bound": f32(32), "before": f32(32), "h": X, "carry": f32(32), "di": X, "df": X}
    },
    "round_rows": {"x": X, "out": X},
    "cast": {"x": X, "out": X},
    "scale_columns": {"x": X, "factors": f32(32), "out": X, "bias": f32(32)},
    "column_dots": {"x": X, "y": X, "out": f32(32), "less": f32(32), "over": f32(32)},
    "round_at_random": {"x": X, "states": seeds(2), "out": np.zeros((2, 32), np.uint16)},
    "add_drawn": {"states": seeds(2), "first": 0, "table": f32(1 << 16), "factor": 1.0, "out": X},
    "sum_squares": {"x": X},
    "take_rows": {"x": X, "rows": cu(0, 1), "out": X},
    "add_rows": {"values": X, "rows": cu(0, 1), "out": X},
    "row_dots": {"x": X, "y": X, "out": f32(2)},
    "cross_entropy_tile": {"logits": X, "first": 0, "targets": cu(0, 1), **LOSS, "p": X, "dh": X},
    "cross_entropy_finish": {**LOSS, "loss": f32(2), "target_rows": X, "dh": X},
    "adamw": {**MOMENTS, "m": f32(2, 5), "v": f32(2, 5), "beta1": 0.9, "beta2": 0.9, "eps": 1e-8, "step": 1},
    "sgd": MOMENTS,
    "byte_level_encoder": {**TEXT, "cuts": [], "composes": False, "whole_words": False},
    "sentencepiece_encoder": {**TEXT, "scores": f32(2)},
    "find_strings": {"file": codes(64), "strings": (0, 2), "wanted": ["a"]},
}
WITHOUT_SIZES = {
    *("available", "use", "current", "threads", "set_threads", "profile", "profile_report", "memory_now"),
    *("meter_start", "meter_peak", "meter_stop", "scratch_peak", "drop_pages", "read_vocabulary", "cut_text"),
}


@pytest.fixture(autouse=True, params=["reference", "vector"])
def kernel_set(request: pytest.FixtureRequest) -> Iterator[None]:
    others = [name for name in kernels.available() if name != REFERENCE]
    with using(REFERENCE if request.param == "reference" else others[-1]):
        yield


def test_every_function_is_called() -> None:
    functions = {name for name in dir(_native) if type(getattr(_native, name)).__name__ == "nb_func"}
    assert functions - WITHOUT_SIZES == set(GOOD)


@pytest.mark.parametrize("name", GOOD)
def test_the_good_calls_work(name: str) -> None:
    getattr(_native, name)(**GOOD[name])


def _numbers(arguments: dict[str, Any]) -> list[str]:
    return [name for name, value in arguments.items() if type(value) is int]


def _arrays(arguments: dict[str, Any]) -> list[str]:
    return [name for name, value in arguments.items() if isinstance(value, np.ndarray) and value.ndim == 2]


def _replaced(value: Any, number: int) -> Iterator[Any]:
    """A value with each of its numbers replaced."""
    if type(value) is int:
        yield number
    elif isinstance(value, tuple):
        for at, item in enumerate(value):
            for other in _replaced(item, number):
                yield (*value[:at], other, *value[at + 1 :])
    elif isinstance(value, list):
        for other in _replaced(tuple(value), number):
            yield list(other)


def _wrong(good: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for number in HUGE:
        for name, value in good.items():
            for other in _replaced(value, number):
                yield {**good, name: other}
        for some in (_numbers(good), [name for name in _numbers(good) if name != "type"]):
            yield {**good, **dict.fromkeys(some, number)}
    for shape in EMPTY:
        for names in ([name] for name in _arrays(good)):
            yield {**good, **{name: np.empty(shape, good[name].dtype) for name in names}}
        every = {name: np.empty(shape, good[name].dtype) for name in _arrays(good)}
        yield {**good, **every}
        for number in HUGE:
            yield {**good, **every, **dict.fromkeys(_numbers(good), number)}


def _call(function: Callable[..., Any], arguments: dict[str, Any]) -> None:
    with suppress(*REFUSALS):
        function(**arguments)


@pytest.mark.parametrize("name", GOOD)
def test_huge_sizes(name: str) -> None:
    for arguments in _wrong(GOOD[name]):
        _call(getattr(_native, name), arguments)


def test_costs_are_of_possible_sizes() -> None:
    """A cost is a finite number that is not negative, or the sizes are refused."""
    for name in (name for name in GOOD if name.endswith("_cost")):
        for arguments in _wrong(GOOD[name]):
            try:
                flops, scratch = getattr(_native, name)(**arguments)
            except REFUSALS:
                continue
            assert flops >= 0, (name, arguments)
            assert 0 <= scratch < 2**63, (name, arguments)


def test_matrices() -> None:
    for rows, cols in product((*HUGE, 0, 1), (*HUGE, 0, 1)):
        for kind in (F32, 2, 8, 14, 10**6, -1):
            try:
                made = Matrix(codes(0), kind, rows, cols)
            except REFUSALS:
                continue
            assert made.nbytes == 0
    for first, last in product((*HUGE, 0, 1), HUGE):
        for axis in ("rows", "cols"):
            with pytest.raises(ValueError, match=r"are outside the matrix"):
                W.slice(**{axis: (first, last)})  # type: ignore[arg-type]
    part = W.slice((0, 2)).slice((1, 2), (8, 16))
    assert (part.shape, part.nbytes) == ((1, 8), 128)


def test_heads_of_no_width_are_refused() -> None:
    """With a width of 0, any number of heads divides it."""
    nothing = {"q": f32(4, 0), "k": f32(4, 0), "v": f32(4, 0), "out": f32(4, 0), "lse": None}
    with pytest.raises(ValueError, match="divide q's width"):
        kernels.attention(**{**ATTENTION, **nothing, "heads": 2**61, "kv_heads": 2**61})
    wide = {"q": f32(4, 0), "out": f32(4, 0), "state": None, "heads": 2**61, "kv_heads": 2**61}
    with pytest.raises(ValueError, match="divide q's width"):
        kernels.cached_attention(**{**GOOD["cached_attention"], **wide})


def test_other_types_of_a_cache_are_refused() -> None:
    for kind in (10**6, -1, 14):
        with pytest.raises(ValueError, match="a cache holds"):
            kernels.cached_attention_cost(**{**GOOD["cached_attention_cost"], "type": kind})


def test_the_number_of_threads() -> None:
    before = kernels.threads()
    for count in (*HUGE, 0, MAX_THREADS + 1):
        with pytest.raises((ValueError, TypeError)):
            _native.set_threads(count)
    assert kernels.threads() == before


def test_read_ahead() -> None:
    ahead = ReadAhead()
    descriptor = os.open(__file__, os.O_RDONLY)
    try:
        for offset, count in product((*HUGE, 0, 1), (*HUGE, 0, 1)):
            _call(ahead.file, {"file": descriptor, "offset": offset, "bytes": count})
    finally:
        ahead.close()
        os.close(descriptor)


def test_parts_of_a_text() -> None:
    encoder = _native.byte_level_encoder(**GOOD["byte_level_encoder"])
    for number in (*HUGE, 2**32 - 1):
        for part in ((number, 0, 1), (0, number, 1), (0, 0, number), (-1, 0, number), (-1, number, number)):
            _call(encoder.encode, {"text": "ab", "parts": [part], "places": True})
        for call in (encoder.token, encoder.token_bytes):
            with pytest.raises((IndexError, TypeError)):
                call(number)
        _call(encoder.decode, {"ids": [number]})


def test_guards() -> None:
    guard = MapGuard(codes(0))
    guard.close()
    guard.close()
    assert guard.lost == 0
