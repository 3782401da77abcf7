"""LoRA's dropout: every exact method against PEFT's autograd with the same masks, drawn here in another way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from zlib import crc32

import numpy as np
import pytest
import torch
from peft import PeftModel

from featherback import methods
from featherback.core import noise
from featherback.data.batch import Batch
from featherback.engine.backend.cpu import CPUOperations
from featherback.engine.host.paged import PagedArray
from featherback.methods.base import Draw
from featherback.methods.memory.plan import Plan
from featherback.methods.mezo import MeZOOptions
from featherback.nn.adapters.dropout import Mask
from featherback.nn.adapters.lora import LoRAAtProjection
from tests.methods.conftest import Twins
from tests.methods.support import Result, adapter_of, assert_close, assert_equal, ours
from tests.methods.test_exact_gradients import BOUND, EXACT, draw
from tests.methods.test_mezo import rows, z
from tests.support.oracle import ALL_TARGETS, random_adapter, reference

RATE = 0.3
STEP = Draw(seed=5, step=3, first_token=7)


def mask_of(layer: int, target: str, first: int, count: int, width: int, origin: Draw = STEP) -> np.ndarray:
    """Return masks (count, width) of 0 and 1 / (1 - p)."""
    key = (crc32(b"dropout"), origin.seed, origin.step, layer, crc32(target.encode()))
    threshold = round(RATE * 65536)
    left = np.empty((count, width), bool)
    for row, start in enumerate(noise.bits(key, count, origin.first_token + first)):
        z = ((int(start) >> 32) + 0x9E3779B9 * np.arange(-(-width // 2), dtype=np.uint64)) & np.uint64(2**32 - 1)
        for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97), (15, 1)):
            z = (z ^ z >> np.uint64(shift)) * np.uint64(factor) & np.uint64(2**32 - 1)
        numbers = np.stack([z & np.uint64(0xFFFF), z >> np.uint64(16)], axis=-1).ravel()
        left[row] = numbers[:width] >= threshold
    return left.astype(np.float32) / np.float32(1 - threshold / 65536)


class Masked(torch.nn.Module):
    """Replaces PEFT's dropout."""

    def __init__(self, layer: int, target: str, first: int, count: int) -> None:
        super().__init__()
        self._of = (layer, target, first, count)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.from_numpy(mask_of(*self._of, x.shape[-1]))


def masked(peft: PeftModel, first: int, count: int) -> None:
    """Make every adapted module of `peft` use the next sequence's masks."""
    for name, module in peft.named_modules():
        if hasattr(module, "lora_dropout"):
            layer, target = int(name.split(".layers.")[1].split(".")[0]), name.rsplit(".", 1)[-1]
            module.lora_dropout["default"] = Masked(layer, target, first, count)


def check(twins: Twins, method: str, lengths: tuple[int, ...], targets: Any = None, rank: int = 4, **plan: Any) -> None:
    sequences = draw(lengths, twins.model.config.vocab_size)
    state = random_adapter(twins.reference, rank, targets, seed=1)
    truth = reference(twins.reference, state, sequences, before=masked)
    found = ours(
        twins.model, state, sequences, method=method, dropout=RATE, draw=STEP,
        **{"mlp_tile": 256, "vocab_tile": 48, **plan},
    )  # fmt: skip
    assert_close(found, Result(truth.loss, truth.grads), BOUND)


@pytest.mark.parametrize(("method", "plan"), [("mesp", {}), ("mesp", {"chunk": 5}), ("mebp", {})], ids=str)
@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3", "olmo2", "phi3", "wide-heads"])
def test_gradients_are_autograds_with_the_same_masks(
    all_twins: dict[str, Twins], name: str, method: str, plan: dict[str, Any]
) -> None:
    check(all_twins[name], method, (5, 1, 17), **plan)


@pytest.mark.parametrize("target", ALL_TARGETS)
def test_one_target(all_twins: dict[str, Twins], target: str) -> None:
    check(all_twins["qwen2"], "mesp", (21,), (target,))


@pytest.mark.parametrize("plan", [{"keep_h": True}, {"mlp_tile": 512}], ids=str)
@pytest.mark.parametrize("name", ["phi3", "wide-heads"])
def test_plans(all_twins: dict[str, Twins], name: str, plan: dict[str, Any]) -> None:
    check(all_twins[name], "mesp", (21, 6), **plan)


def test_kept_intermediates(all_twins: dict[str, Twins]) -> None:
    twins = all_twins["gemma3"]
    every = dict.fromkeys(twins.model.blocks[0].intermediates, twins.model.config.num_hidden_layers)
    check(twins, "mesp", (21, 6), keep=every)


@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_both_methods_are_one_to_the_bit(all_twins: dict[str, Twins], compute: str) -> None:
    twins = all_twins["wide-heads"]
    state, sequences = random_adapter(twins.reference, 4), draw((21, 6), 101)
    mesp, mebp = (
        ours(twins.model, state, sequences, compute=compute, method=method, dropout=RATE, mlp_tile=256)
        for method in EXACT
    )
    assert_equal(mesp, mebp)


def test_sequences_of_a_step_are_masked_alike_in_one_batch_and_in_two(all_twins: dict[str, Twins]) -> None:
    twins = all_twins["llama"]
    sequences, state = draw((9, 20), 101), random_adapter(twins.reference, 4)
    both = ours(twins.model, state, sequences, dropout=RATE, draw=Draw(1, 2))
    parts = [
        ours(twins.model, state, [row], dropout=RATE, draw=Draw(1, 2, first)) for row, first in zip(sequences, (0, 9))
    ]
    loss = (8 * parts[0].loss + 19 * parts[1].loss) / 27
    grads = {name: (8 * parts[0].grads[name] + 19 * parts[1].grads[name]) / 27 for name in both.grads}
    assert_close(both, Result(loss, grads), 1e-5)


def test_evaluation_drops_nothing(all_twins: dict[str, Twins]) -> None:
    twins = all_twins["llama"]
    adapter = adapter_of(twins.model, random_adapter(twins.reference, 4))
    batch = Batch.from_sequences(draw((21, 6), 101))
    method = methods.create("mesp", twins.model, adapter, Plan.default(twins.model.config, tokens=27))
    whole = method.loss(batch)
    adapter.dropout = RATE
    method = methods.create("mesp", twins.model, adapter, Plan.default(twins.model.config, tokens=27))
    assert method.loss(batch) == whole
    gathered = PagedArray(adapter.parameters.layers, adapter.layer_size)
    assert method.gradients(batch, 1.0, gathered, STEP) == method.loss(batch, draw=STEP) != whole


def test_mezo_masks_both_directions_alike(all_twins: dict[str, Twins]) -> None:
    """MeZO's slope matches the exact gradient with the same masks; with other masks it would not."""
    twins = all_twins["llama"]
    adapter = adapter_of(twins.model, random_adapter(twins.reference, 4, seed=3))
    adapter.dropout = RATE
    batch = Batch.from_sequences(draw((30, 9), 101))
    plan = replace(Plan.default(twins.model.config, tokens=39, compute="fp32"))
    found = {}
    for name, options in (("mesp", None), ("mezo", MeZOOptions(epsilon=1e-4))):
        gathered = PagedArray(adapter.parameters.layers, adapter.layer_size)
        at_work = methods.create(name, twins.model, adapter, plan, options=options)
        at_work.gradients(batch, 1 / batch.n_targets, gathered, STEP)
        found[name] = rows(gathered).astype(np.float64)
    direction = z(adapter, STEP.seed, STEP.step).astype(np.float64)
    slope = np.vdot(found["mezo"], direction) / np.vdot(direction, direction)
    assert abs(slope - np.vdot(found["mesp"], direction)) < 0.02 * np.linalg.norm(found["mesp"])


def without_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: the values that are left are not scaled up."""
    monkeypatch.setattr(Mask, "gain", 1.0)


def gradients_past_the_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault in dx += dh A."""
    drop = CPUOperations.drop

    def all_pass(*given: Any, accumulate: bool = False) -> None:
        rest = (0.0, *given[3:]) if accumulate else given[2:]
        drop(*given[:2], *rest, accumulate=accumulate)

    monkeypatch.setattr(CPUOperations, "drop", staticmethod(all_pass))


def whole_inputs_to_a(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault in dA = dh^T x."""
    read = LoRAAtProjection._read

    def unmasked(self: LoRAAtProjection, ctx: Any, x: Any, h: Any, dh: Any, accumulate: bool) -> None:
        read(self, ctx, x, h, None, accumulate)
        if isinstance(x, np.ndarray):  # not in a dry run
            x = np.where(x == 0, x.max(), x)
        read(self, ctx, x, None, dh, accumulate)

    monkeypatch.setattr(LoRAAtProjection, "_read", unmasked)


def every_chunk_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: masks count tokens from the beginning of the chunk."""
    drop = CPUOperations.drop

    def from_the_first(x: Any, key: Any, rate: float, corner: tuple[int, int], *rest: Any, **how: Any) -> None:
        drop(x, key, rate, (STEP.first_token, corner[1]), *rest, **how)

    monkeypatch.setattr(CPUOperations, "drop", staticmethod(from_the_first))


def every_tile_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: masks count features from the beginning of the tile."""
    monkeypatch.setattr(Mask, "inputs", lambda self, first: self)


@pytest.mark.parametrize(
    ("plant", "plan"),
    [
        (without_gain, {}),
        (gradients_past_the_mask, {}),
        (whole_inputs_to_a, {}),
        (every_chunk_the_first, {"chunk": 5}),
        (every_tile_the_first, {}),
    ],
)
def test_planted_faults_are_found(
    wide: Twins, monkeypatch: pytest.MonkeyPatch, plant: Any, plan: dict[str, Any]
) -> None:
    check(wide, "mesp", (21,), **plan)
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check(wide, "mesp", (21,), **plan)
