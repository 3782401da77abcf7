"""DoRA: every exact method against autograd of PEFT's own, tensor by tensor, and the norm against NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from featherback import models
from featherback.engine.backend.cpu import CPUOperations
from featherback.errors import FeatherbackError
from featherback.models.adapter import LoRA
from featherback.models.streams import floats_of
from featherback.nn.adapters.base import Setup
from featherback.nn.adapters.dora import DoRAAtProjection, DoRAKind
from featherback.nn.attention import Attention
from featherback.nn.linear import Projection
from tests.methods.conftest import Twins
from tests.methods.support import ALPHA, Result, adapter_of, assert_close, assert_equal, errors, ours
from tests.methods.test_exact_gradients import BOUND, draw
from tests.support import families
from tests.support.oracle import ALL_TARGETS, MAGNITUDE, State, random_adapter, reference
from tests.support.tiny_models import TINY_LLAMA, write_tiny

MODELS = (*families.MODELS, "qwen3-yarn", "wide-heads")
TILES = {"mlp_tile": 256, "vocab_tile": 48}


def adapter(twins: Twins, targets: Any = None, rank: int = 4) -> State:
    return random_adapter(twins.reference, rank, targets, seed=1, dora=True)


def check(twins: Twins, method: str, lengths: tuple[int, ...], targets: Any = None, rank: int = 4, **plan: Any) -> None:
    sequences, state = draw(lengths, twins.model.config.vocab_size), adapter(twins, targets, rank)
    truth = reference(twins.reference, state, sequences)
    found = ours(twins.model, state, sequences, method=method, **{**TILES, **plan})
    assert_close(found, Result(truth.loss, truth.grads), BOUND)


@pytest.mark.parametrize(("method", "plan"), [("mesp", {}), ("mesp", {"chunk": 5}), ("mebp", {})], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_autograds(all_twins: dict[str, Twins], name: str, method: str, plan: dict[str, Any]) -> None:
    check(all_twins[name], method, (5, 1, 33), **plan)


@pytest.mark.parametrize("target", ALL_TARGETS)
def test_one_target(all_twins: dict[str, Twins], target: str) -> None:
    check(all_twins["qwen2"], "mesp", (21,), (target,))


@pytest.mark.parametrize("rank", [1, 17])
def test_ranks(all_twins: dict[str, Twins], rank: int) -> None:
    check(all_twins["qwen2"], "mesp", (21, 4), rank=rank)


@pytest.mark.parametrize("compute", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "phi3", "wide-heads"])
def test_mebp_is_mesp(all_twins: dict[str, Twins], name: str, compute: str) -> None:
    twins = all_twins[name]
    sequences, state = draw((40, 3, 21), twins.model.config.vocab_size), adapter(twins)
    assert_equal(*(ours(twins.model, state, sequences, compute=compute, method=m, **TILES) for m in ("mesp", "mebp")))


@pytest.mark.parametrize("name", ["llama", "phi4-mini", "gemma3"])
def test_what_is_kept_changes_no_bit_in_fp32(all_twins: dict[str, Twins], name: str) -> None:
    twins = all_twins[name]
    sequences, state = draw((21, 6), twins.model.config.vocab_size), adapter(twins)
    expected = ours(twins.model, state, sequences)
    layers, every = twins.model.config.num_hidden_layers, twins.model.blocks[0].intermediates
    for keep in (dict.fromkeys(every, layers), {"attn_out": 1, "mlp_out": layers}, {"m": 1, "gate": 1, "up": 1}):
        assert_equal(ours(twins.model, state, sequences, keep=keep), expected)
    assert_equal(ours(twins.model, state, sequences, keep_h=False), expected)


@pytest.mark.parametrize("name", ["llama", "qwen2", "phi3"])
def test_outputs_that_are_kept_are_left_alone_without_dora(all_twins: dict[str, Twins], name: str) -> None:
    twins = all_twins[name]
    sequences = draw((21, 6), twins.model.config.vocab_size)
    state = random_adapter(twins.reference, 4)
    kept = ours(twins.model, state, sequences, keep={"attn_out": 1, "mlp_out": 1})
    assert_equal(kept, ours(twins.model, state, sequences))


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3", "wide-heads"])
def test_bf16(all_twins: dict[str, Twins], name: str) -> None:
    """The error of the magnitudes' gradients is as small as that of the factors'."""
    twins = all_twins[name]
    sequences, state = draw((70, 31), twins.model.config.vocab_size), adapter(twins)
    exact, rounded = (ours(twins.model, state, sequences, compute=compute) for compute in ("fp32", "bf16"))
    off = errors(rounded.grads, exact.grads)
    m, factors = ([e for n, e in off.items() if (MAGNITUDE in n) == chosen] for chosen in (True, False))
    assert max(m) < 2 * max(factors) < 0.2


def measured(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, np.ndarray]]:
    """Return the array of each layer's c: target -> (out,)."""
    found: list[dict[str, np.ndarray]] = []
    prepare = DoRAKind.prepare

    def spied(kind: DoRAKind, ctx: Any, weight: Any, setup: Setup, fixed: Any) -> None:
        prepare(kind, ctx, weight, setup, fixed)
        if isinstance(setup.prepared, np.ndarray):  # not in a dry run
            while len(found) <= setup.layer:
                found.append({})
            found[setup.layer][setup.name] = setup.prepared.copy()

    monkeypatch.setattr(DoRAKind, "prepare", spied)
    return found


def test_it_begins_as_no_change(all_twins: dict[str, Twins], monkeypatch: pytest.MonkeyPatch) -> None:
    """With B = 0 and m = the rows' norms, c is 1 to the last bit, and the loss is the base model's."""
    twins, sequences = all_twins["llama"], draw((21, 6), 101)
    fresh, plain = LoRA(twins.model, 4, dora=True), LoRA(twins.model, 4)
    found = measured(monkeypatch)
    loss = ours(twins.model, fresh.state(), sequences).loss
    assert loss == pytest.approx(ours(twins.model, plain.state(), sequences).loss, rel=1e-6)
    assert len(found) == 2
    assert all((c == 1).all() for columns in found for c in columns.values())
    for name, m in fresh.state().items():
        if MAGNITUDE in name:
            weight = twins.reference.get_submodule(name.removesuffix(f".{MAGNITUDE}")).weight
            np.testing.assert_allclose(m, weight.detach().norm(dim=1).numpy(), rtol=1e-6)


def test_the_norm_is_numpys(all_twins: dict[str, Twins], monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare c, computed from the squares of W's rows and products of the rank, with the rows of W + s B A."""
    twins = all_twins["qwen2"]
    made = adapter_of(twins.model, adapter(twins))
    found = measured(monkeypatch)
    ours(twins.model, made.state(), draw((9,), 101), mlp_tile=256)
    assert len(found) == twins.model.config.num_hidden_layers
    for layer, columns in enumerate(found):
        flat = np.empty(made.layer_size, np.float32)
        made.parameters.read(layer, flat)
        for name, values in made.layout.view(layer, flat).items():
            adapted = floats_of(twins.model.layer(layer).matrices[name]).astype(np.float64)
            adapted += ALPHA / 4 * values["B^T"].T.astype(np.float64) @ values["A"]
            np.testing.assert_allclose(columns[name], values["m"] / np.linalg.norm(adapted, axis=1), rtol=2e-6)


def test_a_magnitude_of_zero_gets_no_gradient_and_spoils_none(all_twins: dict[str, Twins]) -> None:
    twins = all_twins["qwen2"]
    sequences, state = draw((21, 4), 101), adapter(twins)
    silent = [name for name in state if MAGNITUDE in name]
    for name in silent:
        state[name][3] = 0
    truth = reference(twins.reference, state, sequences).grads
    found = ours(twins.model, state, sequences)
    for name in silent:
        assert found.grads[name][3] == 0
        truth[name][3] = 0
    assert_close(found, Result(found.loss, truth), BOUND)


def test_a_row_of_zeros_is_refused(tmp_path: Path) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf", TINY_LLAMA))
    matrix = model.layer(1).matrices["k_proj"]
    data = np.fromfile(matrix.home, np.uint8)
    data[matrix.offset : matrix.offset + matrix.row_bytes] = 0
    data.tofile(tmp_path / "zero.gguf")
    with pytest.raises(FeatherbackError, match="k_proj of layer 1 has a row of zeros"):
        LoRA(models.load(tmp_path / "zero.gguf"), 2, dora=True)
    LoRA(models.load(tmp_path / "zero.gguf"), 2, targets="q", dora=True)


def _unweighed(name: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Fault: the gradient passes one projection as if its columns were not scaled."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        scale_gradient = Projection.scale_gradient
        patch.setattr(
            Projection, "scale_gradient", lambda p, *rest: None if p.name == name else scale_gradient(p, *rest)
        )

    return plant


def _bias_scaled(patch: pytest.MonkeyPatch) -> None:
    """Fault: y = c (u + bias)."""

    def finish(dora: DoRAAtProjection, ctx: Any, out: Any, bias: Any) -> None:
        ctx.ops.scale_columns(out, None, out, bias=bias)
        ctx.ops.scale_columns(out, dora.c, out)

    patch.setattr(DoRAAtProjection, "finish", finish)


def _bias_in_dm(patch: pytest.MonkeyPatch) -> None:
    """Fault: dm is computed from y with its bias."""
    dots = CPUOperations.column_dots
    patch.setattr(CPUOperations, "column_dots", staticmethod(lambda *a, less=None, over=None: dots(*a, over=over)))


def _norm_of_the_base(patch: pytest.MonkeyPatch) -> None:
    """Fault: n = ||W||."""
    over_norm = CPUOperations.over_norm
    patch.setattr(
        CPUOperations, "over_norm", staticmethod(lambda m, squares, dots, f, out: over_norm(m, squares, dots, 0, out))
    )


def _cross_term_doubled(patch: pytest.MonkeyPatch) -> None:
    """Fault: n^2 counts s^2 ||B A||^2 twice in its cross term."""
    lora_in = CPUOperations.lora_in

    def whole(x: Any, a: Any, h: Any, scale: float, **options: Any) -> None:
        lora_in(x, a, h, 2 * scale if len(x) == len(a) == h.shape[1] else scale, **options)

    patch.setattr(CPUOperations, "lora_in", staticmethod(whole))


def _turned(patch: pytest.MonkeyPatch) -> None:
    """Fault: dm of q and k is computed after the rotation."""
    patch.setattr(Attention, "_inverse_rope", lambda *arguments: None)


def _sharpened(patch: pytest.MonkeyPatch) -> None:
    """Fault: the rotation is undone, but its scale factor is not."""
    unturn = Attention._inverse_rope

    def rotated(attention: Attention, ctx: Any, letter: str, turned: Any) -> None:
        before = ctx.ops.scale_columns
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(CPUOperations, "scale_columns", staticmethod(lambda *a, **o: None))
            unturn(attention, ctx, letter, turned)
        assert ctx.ops.scale_columns is before

    patch.setattr(Attention, "_inverse_rope", rotated)


FAULTS: dict[str, tuple[str, Callable[[pytest.MonkeyPatch], None]]] = {
    "no fault": ("qwen2", lambda patch: None),
    **{f"{name} not weighed": ("qwen2", _unweighed(name)) for name in ALL_TARGETS},
    "bias scaled": ("qwen2", _bias_scaled),
    "bias in dm": ("qwen2", _bias_in_dm),
    "norm of the base": ("llama", _norm_of_the_base),
    "cross term doubled": ("llama", _cross_term_doubled),
    "q and k turned": ("llama", _turned),
    "longrope's factor in dm": ("phi4-mini", _sharpened),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(all_twins: dict[str, Twins], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, plant = FAULTS[name]
    plant(monkeypatch)
    if name == "no fault":
        check(all_twins[case], "mesp", (21, 4))
    else:
        with pytest.raises(AssertionError):
            check(all_twins[case], "mesp", (21, 4))
