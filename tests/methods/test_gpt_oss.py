"""gpt-oss: planted faults in what only it has, and damaged sinks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import featherback as fb
from benchmarks.synthetic import gguf_metadata
from featherback import models
from featherback.engine.backend.cpu import CPUOperations
from featherback.engine.formats.writer import tensor_of_array, write_gguf
from featherback.errors import FeatherbackError
from featherback.models.finite import check_weights
from featherback.models.model import Model
from tests.methods.conftest import Twins
from tests.methods.test_exact_gradients import check, draw
from tests.support.families.gpt_oss import TINY_GPT_OSS
from tests.support.tiny_models import _tensors, write_tiny

Plant = Callable[[Model, pytest.MonkeyPatch], None]
SINKS = "blk.1.attn_sinks.weight"


def without(*names: str) -> Plant:
    """Leave out vectors of every layer."""

    def plant(model: Model, patch: pytest.MonkeyPatch) -> None:
        for block in set(model.blocks):
            for name in names:
                del block.vectors[name]

    return plant


def instead_of(operation: str, fault: Callable[..., None]) -> Plant:
    """Replace an operation by `fault`, which receives the right one as its first argument."""

    def plant(model: Model, patch: pytest.MonkeyPatch) -> None:
        right = getattr(CPUOperations, operation)
        patch.setattr(CPUOperations, operation, staticmethod(lambda *given, **named: fault(right, *given, **named)))

    return plant


def sinks_in_the_output_only(right: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *rest: Any, **named: Any) -> None:
    """Give a log-sum-exp without the sinks to the backward pass."""
    right(q, k, v, np.empty_like(out), lse, *rest, **(named | {"sinks": None}))
    right(q, k, v, out, np.empty_like(lse), *rest, **named)


def sinks_of_the_next_head(right: Any, *given: Any, **named: Any) -> None:
    right(*given, **(named | {"sinks": np.roll(named["sinks"], 1)}))


def gradient_beyond_the_clips(right: Any, da: Any, gate: Any, up: Any, *rest: Any, **named: Any) -> None:
    """Use the derivative at the clip."""
    right(da, np.minimum(gate, 7), np.clip(up, -7, 7), *rest, **named)


def up_without_one(right: Any, gate: Any, up: Any, *rest: Any, **named: Any) -> None:
    right(gate, np.clip(up, -7, 7) - 1, *rest, **named)


def up_without_one_backward(right: Any, da: Any, gate: Any, up: Any, *rest: Any, **named: Any) -> None:
    right(da, gate, np.clip(up, -7, 7) - 1, *rest, **named)


def no_clips(right: Any, gate: Any, up: Any, out: Any, activation: str) -> None:
    out[...] = gate / (1 + np.exp(-1.702 * gate)) * (up + 1)


def without_the_bias_in_dw(model: Model, patch: pytest.MonkeyPatch) -> None:
    """Compute the gradient of the experts' weights as if their outputs had no bias."""
    for block in set(model.blocks):
        block.branches[1]._start_dw = lambda ctx, d_out, weights, dw: ctx.ops.fill(dw, 0)


def with_rounded_limits(model: Model, patch: pytest.MonkeyPatch) -> None:
    """Round the limits of YaRN, as llama.cpp does."""
    rounded = replace(model.config, architecture="qwen3moe")
    turn = models.families.blocks(rounded)[0].branches[0].rotary  # type: ignore[attr-defined]
    for block in set(model.blocks):
        block.branches[0].rotary, block.branches[0].rotaries = turn, (turn,)
    model.rotaries = (turn,)


def with_windows_swapped(model: Model, patch: pytest.MonkeyPatch) -> None:
    """Let the first of two layers see everything."""
    local, everywhere = model.blocks[:2]
    local.branches[0].window, everywhere.branches[0].window = 0, local.branches[0].window


def with_all(*plants: Plant) -> Plant:
    def plant(model: Model, patch: pytest.MonkeyPatch) -> None:
        for each in plants:
            each(model, patch)

    return plant


FAULTS: dict[str, Plant] = {
    "no fault": without(),
    "no sinks": without("sinks"),
    "no sinks in the backward pass": instead_of("attention", sinks_in_the_output_only),
    "sinks of the next head": instead_of("attention", sinks_of_the_next_head),
    "a gradient beyond the clips": instead_of("glu_backward", gradient_beyond_the_clips),
    "up instead of up + 1": with_all(
        instead_of("glu", up_without_one), instead_of("glu_backward", up_without_one_backward)
    ),
    "up instead of up + 1, in the backward pass": instead_of("glu_backward", up_without_one_backward),
    "no clips": instead_of("glu", no_clips),
    "no bias of o": without("o_bias"),
    "no bias of gate": without("gate_exps_bias"),
    "no bias of up": without("up_exps_bias"),
    "no bias of down": without("down_exps_bias"),
    "no bias of down in the gradient of the routing": without_the_bias_in_dw,
    "no bias of the router": without("router_bias"),
    "rounded limits of YaRN": with_rounded_limits,
    "windows in the other layers": with_windows_swapped,
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(all_twins: dict[str, Twins], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    twins = all_twins["gpt-oss"]
    model = models.load(twins.path)
    FAULTS[name](model, monkeypatch)
    faulty, sequences = replace(twins, model=model), draw((33, 41), model.config.vocab_size)
    if name == "no fault":
        check(faulty, "mesp", sequences)
    else:
        with pytest.raises(AssertionError):
            check(faulty, "mesp", sequences)


def test_the_clips_are_reached(all_twins: dict[str, Twins], monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny model has gates above 7, and ups on both sides; most are inside."""
    beyond, right = list[list[float]](), CPUOperations.glu

    def seen(gate: Any, up: Any, *rest: Any) -> None:
        beyond.append([np.mean(each) for each in (gate > 7, up > 7, up < -7)])
        right(gate, up, *rest)

    monkeypatch.setattr(CPUOperations, "glu", staticmethod(seen))
    twins = all_twins["gpt-oss"]
    check(twins, "mesp", draw((33,), twins.model.config.vocab_size))
    for share in np.mean(beyond, axis=0):
        assert 0.005 < share < 0.1


def with_sinks(path: Path, values: Any) -> Path:
    """Write a tiny model in which one layer has these sinks."""
    tensors = [tensor_of_array(SINKS, values) if t.name == SINKS else t for t in _tensors(TINY_GPT_OSS, {}, 0)]
    write_gguf(path, gguf_metadata(TINY_GPT_OSS, "tiny"), tensors)
    return path


@pytest.mark.parametrize("shape", [(3,), (5,), (2, 2)], ids=str)
def test_sinks_of_another_number(tmp_path: Path, shape: tuple[int, ...]) -> None:
    with pytest.raises(FeatherbackError, match=r"attn_sinks.* has shape .*, but the configuration needs \(4,\)[^\n]*$"):
        models.load(with_sinks(tmp_path / "bad.gguf", np.ones(shape, np.float32)))


def test_a_model_without_sinks(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    tensors = [tensor for tensor in _tensors(TINY_GPT_OSS, {}, 0) if tensor.name != SINKS]
    write_gguf(path, gguf_metadata(TINY_GPT_OSS, "tiny"), tensors)
    with pytest.raises(FeatherbackError, match=r"attn_sinks.* is missing[^\n]*$"):
        models.load(path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_sinks_that_are_not_finite(tmp_path: Path, value: float) -> None:
    model = models.load(with_sinks(tmp_path / "bad.gguf", np.array([0, 1, value, 2], np.float32)))
    with pytest.raises(FeatherbackError, match=r"sinks of layer 1 holds NaN or infinity\.$"):
        check_weights(model)
    if np.isnan(value):
        with pytest.raises(FeatherbackError, match=r"NaN[^\n]*$"):
            fb.gradients(model, fb.LoRA(model, rank=2), np.arange(9, dtype=np.int32))


@pytest.mark.parametrize(
    ("key", "value"), [("expert_gating_func", np.uint32(2)), ("expert_weights_norm", False)], ids=str
)
def test_another_gating(tmp_path: Path, key: str, value: Any) -> None:
    path = write_tiny(tmp_path / "bad.gguf", TINY_GPT_OSS, metadata={f"gpt-oss.{key}": value})
    with pytest.raises(FeatherbackError, match=r"gpt-oss\.expert_\w+ [^\n]* is [^\n]*$"):
        models.load(path)
