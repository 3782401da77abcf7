"""The device of PyTorch, on PyTorch's CPU device: stored types, tiles, memory, operations against the CPU's kernels."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.oracle import random_adapter, reference_model
from tests.support.tiny_models import TINY_LLAMA, write_tiny

from benchmarks.random_blocks import random_blocks
from featherback import models
from featherback.engine import backend, kernels
from featherback.engine.backend.counting import OPERATIONS
from featherback.engine.backend.cpu import CPU
from featherback.engine.formats.matrix import Matrix
from featherback.engine.formats.types import TensorType
from featherback.errors import FeatherbackError
from featherback.models.model import Model

torch = pytest.importorskip("torch")

from tests.methods.support import Result, assert_close, ours  # noqa: E402
from tests.support.tiers import some  # noqa: E402

from featherback.engine.backend.torch_device import arrays, unpacking  # noqa: E402

BOUND = 1e-4  # relative, of each tensor's norm
SEQUENCES = [np.random.default_rng(0).integers(0, 100, n).tolist() for n in (13, 1, 40)]


@pytest.fixture(autouse=True)
def chosen() -> Iterator[None]:
    """Compute on PyTorch's CPU device."""
    backend.use("cpu-torch")
    yield
    backend.use()


@pytest.fixture
def llama(tmp_path: Path) -> tuple[Model, dict[str, np.ndarray]]:
    path = write_tiny(tmp_path / "m.gguf", TINY_LLAMA, TensorType.Q4_0)
    return models.load(path), random_adapter(reference_model(path), 4, seed=1)


def test_a_fault_in_a_stored_type_is_found(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = ours(*llama, SEQUENCES)
    right = unpacking.UNPACK[TensorType.Q4_0]
    monkeypatch.setitem(unpacking.UNPACK, TensorType.Q4_0, lambda blocks: right(blocks) * 1.01)
    with pytest.raises(AssertionError):
        assert_close(ours(*llama, SEQUENCES), truth, BOUND)


@pytest.mark.parametrize("limits", [(1, 1), (500, 30), (10**6, 200)], ids=str)
def test_tiles_of_weights_and_of_scores_change_nothing(
    llama: Any, limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ours(*llama, SEQUENCES)
    monkeypatch.setattr(arrays.Limits, "within", lambda room: arrays.Limits(*limits))
    assert_close(ours(*llama, SEQUENCES), whole, 1e-5)


def test_shared_prompts(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = list(range(20))
    sequences = [[*prompt, *range(30, 37)], [*prompt, *range(50, 61)]]
    labels = [[-100] * 20 + each[20:] for each in sequences]
    found = ours(*llama, sequences, labels)
    monkeypatch.setattr(arrays.Limits, "within", lambda room: arrays.Limits(100, 50))
    in_parts = ours(*llama, sequences, labels)
    backend.use()
    truth = ours(*llama, sequences, labels)
    assert_close(found, truth, BOUND)
    assert_close(in_parts, truth, BOUND)


def test_bf16_is_as_exact_as_on_the_cpu(llama: Any) -> None:
    exact = ours(*llama, SEQUENCES)
    found = ours(*llama, SEQUENCES, compute="bf16")
    backend.use()
    on_cpu = ours(*llama, SEQUENCES, compute="bf16")
    assert _distance(found, exact) < 2 * _distance(on_cpu, exact)


def _distance(found: Result, truth: Result) -> float:
    """Return the relative distance of all gradients together, in the Euclidean norm."""
    squares = sum(float(np.square(found.grads[name] - truth.grads[name]).sum()) for name in truth.grads)
    return float(np.sqrt(squares / sum(float(np.square(each).sum()) for each in truth.grads.values())))


@pytest.mark.parametrize("kind", unpacking.UNPACK)
def test_stored_types_have_the_same_bits_as_on_the_cpu(kind: TensorType) -> None:
    matrix = _random(kind, 7, 768)
    wanted = np.empty(matrix.shape, np.float32)
    kernels.dequantize(kernels.matrix(matrix), wanted)
    device = backend.of("fp32")
    weight = device.matrix(matrix)
    for rows, cols in ((None, None), ((2, 5), (256, 768)), ((0, 1), (0, 256))):
        part = wanted[slice(*(rows or (None,))), slice(*(cols or (None,)))]
        out = device.arena(wanted.nbytes).take("out", part.shape)
        device.ops.dequantize(weight.slice(rows, cols), out)
        np.testing.assert_array_equal(out.tensor.numpy(), part)
    if kind.block_size > 1:  # columns within a block
        values = next(iter(weight.slice(cols=(8, 40)).tiles(torch.float32)))[1]
        np.testing.assert_array_equal(values.numpy(), wanted[:, 8:40])


def _random(kind: TensorType, rows: int, cols: int) -> Matrix:
    data = random_blocks(np.random.default_rng(0), kind, rows * cols // kind.block_size, 0.1)
    return Matrix(data.view(np.uint8).reshape(-1), kind, rows, cols)


RNG = np.random.default_rng(3)
X, Y = (RNG.standard_normal((5, 64)).astype(np.float32) for _ in range(2))
V, W = X[0].copy(), np.abs(Y[0]) + 0.5
T = RNG.standard_normal(5).astype(np.float32)
ROWS, COLUMNS = np.array([4, 0, 2]), np.array([70, 3, 63], np.int32)
SPACE = np.zeros_like(X)
CASES: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("hadamard", (X, 16), {}),
    ("round_rows", (X, SPACE), {}),
    ("gate", (X, Y, SPACE, "silu"), {}),
    ("gate", (X, None, SPACE, "sigmoid"), {}),
    ("gate_backward", (Y, X, Y, SPACE, SPACE, "silu"), {}),
    ("gate_backward", (Y, X, None, SPACE, None, "sigmoid"), {}),
    ("encode", (X, np.zeros((5, 68), np.uint8)), {}),
    ("scale_columns", (X, V, Y), {"bias": W, "accumulate": True}),
    ("column_dots", (X, Y, V), {"less": V, "over": W}),
    ("row_dots", (X, Y, T), {"accumulate": True}),
    ("over_norm", (V, W, W, 2.0, V.copy()), {}),
    ("scale_rows", (X, T), {}),
    ("transpose", (X, np.zeros((64, 5), np.float32)), {}),
    ("softcap", (X, 1.5), {}),
    ("capped_slopes", (X, 3.5), {}),
    ("capped_slopes", (X, 0.0), {}),
    ("pick", (X, ROWS, COLUMNS, np.ones(3, np.float32)), {}),
    ("clear", (X, ROWS, COLUMNS), {}),
    ("add_row_sums", (X, T), {}),
    ("add_normals", ((1, 2), (3, 4), 0.5, X), {}),
    ("add_normal", ((1, 2), 0.5, V), {"weights": W}),
    ("drop", (X, (1, 2), 0.3, (5, 7), Y), {"accumulate": True}),
    ("smallest", (V, 9), {}),
    ("mark_small", (V, 0.4), {}),
    ("negatives", (X,), {}),
    ("replace_negatives", (X, 0.25), {}),
    ("row_means", (X, T), {}),
    ("column_sums", (X, V), {}),
    ("row_squares", (X, T), {}),
    ("column_squares", (X, V), {}),
    ("dot", (V, W), {}),
    ("sgd", (V, W, 0.1, 0.01, 0.5), {}),
    ("adamw", (V, W, V * 0, W, 0.1, 0.9, 0.99, 1e-8, 0.01, 3, 0.5), {}),
    ("sinks_gradient", (T[:2], Y[:2], X[:2], np.zeros(2, np.float32)), {}),
]


@pytest.mark.parametrize(("name", "given", "options"), CASES, ids=[f"{i}-{each[0]}" for i, each in enumerate(CASES)])
def test_operations_equal_those_of_the_cpu(name: str, given: tuple[Any, ...], options: dict[str, Any]) -> None:
    device, found, wanted = backend.of("fp32"), [], []
    for ops, convert in ((CPU("fp32").ops, lambda x: x), (device.ops, lambda x: arrays.Array(torch.from_numpy(x)))):
        copies = [each.copy() if isinstance(each, np.ndarray) else each for each in given]
        arguments = [convert(x) if isinstance(x, np.ndarray) and x.dtype.kind in "fu" else x for x in copies]
        named = {key: convert(x.copy()) if isinstance(x, np.ndarray) else x for key, x in options.items()}
        result = getattr(ops, name)(*arguments, **named)
        (wanted if ops is not device.ops else found).extend([*copies, result])
    if name == "smallest":  # it may overwrite its argument
        found, wanted = found[-1:], wanted[-1:]
    for ours_, theirs in zip(found, wanted, strict=True):
        if isinstance(theirs, (np.ndarray, float)):
            np.testing.assert_allclose(ours_, theirs, rtol=2e-5, atol=2e-6)


def test_the_largest_values_of_tiles() -> None:
    device = backend.of("fp32")
    values = arrays.Array(torch.full((5, 4), -torch.inf))
    columns = arrays.Array(torch.zeros(5, 4, dtype=torch.int32))
    for first in (0, 40):
        part = np.ascontiguousarray(X[:, first : first + 40])
        device.ops.largest(arrays.Array(torch.from_numpy(part)), first, values, columns)
    wanted = np.sort(np.argsort(-X, 1)[:, :4], 1)
    np.testing.assert_array_equal(np.sort(columns.tensor.numpy(), 1), wanted)
    found = np.take_along_axis(X, columns.tensor.numpy().astype(np.int64), 1)
    np.testing.assert_array_equal(values.tensor.numpy(), found)


def test_orthonormal_columns_span_the_same() -> None:
    given = X[:, :3].copy()
    x = arrays.Array(torch.from_numpy(given.copy()))
    backend.of("fp32").ops.orthonormal(x, None)
    q = x.tensor.numpy()
    np.testing.assert_allclose(q.T @ q, np.eye(3), atol=1e-6)
    np.testing.assert_allclose(q @ (q.T @ given), given, atol=1e-5)


def test_only_recurrences_and_slopes_are_missing() -> None:
    ops = backend.of("fp32").ops
    missing = {name for name in OPERATIONS if not hasattr(ops, name)}
    assert missing == {
        "delta_rule", "delta_rule_backward", "gated_recurrence", "gated_recurrence_backward", "slope_codes",
        "slope_backward", "round_at_random",
    }  # fmt: skip


ROWS_OF_X, WIDTH, HEIGHT, HEADS, TOKENS = 64, 2048, 1024, 8, 384


def _peak(call: Callable[[], object]) -> int:
    """Return the most bytes of tensors that a call allocates."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        call()
    events = [each for each in profile.profiler.kineto_results.events() if each.name() == "[memory]"]
    sizes = [each.nbytes() for each in sorted(events, key=lambda each: each.start_ns())]
    return max(0, *np.cumsum(sizes)) if sizes else 0


def _large(*shape: int) -> Any:
    return arrays.Array(torch.randn(shape))


@pytest.mark.parametrize("compute", some(["fp32", "bf16"], 1))
def test_operations_take_no_more_memory_than_the_card_says(compute: str) -> None:
    """Products unpack a tile at a time, and attention has so many scores at a time, that all fits in the room."""
    _check_memory(compute)


def test_a_fault_of_the_tiles_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays.Limits, "within", lambda room: arrays.Limits(1 << 24, 1 << 26))
    with pytest.raises(AssertionError, match="TensorType"):
        _check_memory("fp32")


def _check_memory(compute: str) -> None:
    card = backend.use("cpu-torch", 40 * 10**6)
    assert card is not None
    device = card.open(compute, False, False)
    cu, ops = np.array([0, TOKENS], np.int32), device.ops

    def check(what: object, rows: int, width: int, call: Callable[[], object]) -> None:
        call()  # loads code, and uploads row numbers
        peak, allowed = _peak(call), card.temporaries(rows, width)
        assert peak <= allowed, (what, peak, allowed)

    x, dy = (_large(ROWS_OF_X, n) for n in (WIDTH, HEIGHT))
    for each in (x, dy):
        each.tensor = each.tensor.to(arrays.TYPES[device.operand])
    out, dx = _large(ROWS_OF_X, HEIGHT), _large(ROWS_OF_X, WIDTH)
    for kind in unpacking.UNPACK:
        weight = device.matrix(_random(kind, HEIGHT, WIDTH))
        check(kind, ROWS_OF_X, WIDTH, partial(ops.linear, x, weight, out, accumulate=True))
        check(kind, ROWS_OF_X, WIDTH, partial(ops.linear_backward, dy, weight, dx))
        check(kind, ROWS_OF_X, WIDTH, partial(ops.dequantize, weight, _large(HEIGHT, WIDTH)))
    q, k, v, o, dq, dk, dv = (_large(TOKENS, HEADS * 16) for _ in range(7))
    lse, delta, more = _large(HEADS, TOKENS), _large(HEADS, TOKENS), {"scale": 0.25, "window": 0, "softcap": 20.0}
    check("attention", TOKENS, HEADS * 16, partial(ops.attention, q, k, v, o, lse, HEADS, HEADS, cu, cu, **more))
    given = q, q, k, v, o, lse, delta, dq, dk, dv, HEADS, HEADS, cu, cu
    check("its gradient", TOKENS, HEADS * 16, partial(ops.attention_backward, *given, **more))
    a, b, c, d, e = (_large(TOKENS, WIDTH) for _ in range(5))
    columns, norm, states = (
        arrays.Array(torch.zeros(TOKENS, 8, dtype=torch.int32)),
        _large(WIDTH),
        [_large(TOKENS) for _ in range(4)],
    )
    targets = np.arange(TOKENS, dtype=np.int32)
    for what, call in {
        "glu": partial(ops.glu, a, b, c, "gelu_tanh"),
        "glu_backward": partial(ops.glu_backward, a, b, c, d, e, "gelu_tanh"),
        "rms_norm_backward": partial(ops.rms_norm_backward, a, b, norm, 1e-5, c),
        "layer_norm_backward": partial(ops.layer_norm_backward, a, b, norm, 1e-5, c),
        "rope": partial(ops.rope, a, _large(TOKENS, 32), _large(TOKENS, 32), b, 64, False),
        "cross_entropy_tile": partial(
            ops.cross_entropy_tile, a, 0, targets, *states[:3], b, _large(TOKENS, 64), softcap=30.0
        ),
        "adamw": partial(ops.adamw, a, b, c, d, 1e-3, 0.9, 0.99, 1e-8, 0.1, 3, 1.0),
        "largest": partial(ops.largest, a, 0, _large(TOKENS, 8), columns),
    }.items():
        check(what, TOKENS, WIDTH, call)


def test_the_package_does_not_import_torch() -> None:
    code = (
        "import sys, featherback.api, featherback.engine.backend as b; b.of('fp32'); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unsupported_choices_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FeatherbackError, match=r"'coda'; expected one of: cpu, cuda.*Did you mean"):
        backend.use("coda")
    with pytest.raises(FeatherbackError, match="int16"):
        backend.of("int16")
    card = backend.card()
    assert card is not None
    with pytest.raises(FeatherbackError, match=r"cannot read weights of the type IQ2_XXS\. It reads .*Q4_K"):
        card.check([TensorType.Q4_0, TensorType.IQ2_XXS])
    with pytest.raises(FeatherbackError, match="is more than the"):
        backend.use("cpu-torch", 10**15)
    if not torch.cuda.is_available():
        with pytest.raises(FeatherbackError, match=r"device.*cuda.* is not available: PyTorch"):
            backend.use("cuda")
    monkeypatch.setattr("featherback.engine.backend.torch_device.find_spec", lambda name: None)
    with pytest.raises(FeatherbackError, match=r"needs PyTorch, which is not installed.*featherback\[torch\]"):
        backend.use("cuda")
