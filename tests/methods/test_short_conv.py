"""LFM2's short convolution: its carry between chunks, the ends of sequences, and its state in decoding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel

from featherback import methods, models
from featherback.data.batch import Batch
from featherback.engine.formats.types import TensorType
from featherback.exports import FORMATS, formats
from featherback.infer.decoder import Decoder
from featherback.infer.layout import Layout
from featherback.methods.memory.plan import Plan
from featherback.methods.whole.gradients import WeightGradients
from featherback.models.adapter import LoRA
from featherback.nn.context import Context
from featherback.nn.convolution import Convolution, Rows
from featherback.nn.span import Span
from tests.methods.conftest import Twins
from tests.methods.support import Result, adapter_of, assert_close, ours
from tests.methods.test_exact_gradients import BOUND, draw
from tests.methods.test_whole_weights import check as check_whole
from tests.support.families.lfm2 import TINY_LFM2
from tests.support.oracle import PEFT_PREFIX, random_adapter, reference, reference_model
from tests.support.pairs import PAIR_FORMATS
from tests.support.tiers import some
from tests.support.tiny_models import write_tiny

LENGTHS = (1, 2, 7, 5, 1, 24)
TILES = {"mlp_tile": 256, "vocab_tile": 48}


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Twins:
    path = write_tiny(tmp_path_factory.mktemp("conv") / "m.gguf", replace(TINY_LFM2, taps=4), TensorType.F32)
    return Twins(path, models.load(path), reference_model(path))


def check(twins: Twins, **plan: Any) -> None:
    sequences, state = draw(LENGTHS, twins.model.config.vocab_size), random_adapter(twins.reference, 4, seed=1)
    truth = reference(twins.reference, state, sequences)
    assert_close(ours(twins.model, state, sequences, **TILES, **plan), Result(truth.loss, truth.grads), BOUND)


@pytest.mark.parametrize("chunk", some([None, 1, 2, 3, 4, 5, 9], 4))
def test_sequences_and_chunks_shorter_than_the_taps(twins: Twins, chunk: int | None) -> None:
    check(twins, chunk=chunk)


def not_zeroed(self: Convolution, ctx: Context, before: Any) -> Any:
    """Fault: a sequence begins with the state of the previous one."""
    late = replace(ctx.span, positions=ctx.span.positions + self.taps)
    return Convolution_room(self, replace(ctx, span=late), before)


def across(self: Convolution, span: Span, back: int) -> Any:
    """Fault: a tap reaches into the previous sequence."""
    yield back, span.tokens


def not_back(self: Convolution, ctx: Context, du: Any, carry: Rows) -> None:
    """Fault: a chunk's gradient stays in it."""


def always_back(self: Convolution, ctx: Context, du: Any, carry: Rows) -> None:
    """Fault: a sequence's gradient goes to the previous one."""
    ctx.ops.cast(du[: self.taps - 1], carry.behind)


Convolution_room = Convolution.room
FAULTS = {
    "room": not_zeroed,
    "_reached": across,
    "leave_to_previous_span": not_back,
    "leave_to_previous_span ": always_back,
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_carry_is_found(twins: Twins, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Convolution, name.strip(), FAULTS[name])
    with pytest.raises(AssertionError):
        check(twins, chunk=5)


def test_taps_of_several_sequences(twins: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    check_whole(twins, draw(LENGTHS, twins.model.config.vocab_size))
    layer = WeightGradients.layer

    def halved(self: WeightGradients, index: int) -> Any:
        sink = layer(self, index)
        vector = type(sink).vector

        class Halved(type(sink)):  # type: ignore[misc]
            def vector(self, ctx: Context, name: str, gradient: Any) -> None:
                if name == "conv":
                    ctx.ops.scale(gradient, 0.5)
                vector(self, ctx, name, gradient)

        return Halved(sink.of, sink.index)

    monkeypatch.setattr(WeightGradients, "layer", halved)
    with pytest.raises(AssertionError):
        check_whole(twins, draw(LENGTHS, twins.model.config.vocab_size))


def test_common_beginnings_are_not_shared(twins: Twins) -> None:
    """The taps of a later sequence would reach into another one."""
    common = list(range(20))
    batch = Batch.from_sequences([[*common, 30], [*common, 40]], [[-100] * 20 + [30], [-100] * 20 + [40]])
    method = methods.create("mesp", twins.model, None, Plan.default(twins.model.config, tokens=batch.n_tokens))
    with method._begin(batch) as sweep:
        assert sweep.batch is batch
    method.close()


@pytest.mark.parametrize("layout", [Layout(), Layout("by_matrix", "file", 8, 256, 256)], ids=str)
def test_decoding(twins: Twins, layout: Layout, tmp_path: Path) -> None:
    """A prompt in passes, one of them shorter than the taps, then token by token, and once more from the start."""
    (tokens,) = draw((31,), twins.model.config.vocab_size)
    state = random_adapter(twins.reference, 4, seed=2)
    expected = reference(twins.reference, state, [tokens]).logits[0]
    decoder = Decoder(twins.model, adapter_of(twins.model, state), compute="fp32", layout=layout, folder=tmp_path)
    found = [decoder.forward(tokens[:20], every=True), decoder.forward(tokens[20:22], every=True)]
    found += [decoder.forward([token])[None] for token in tokens[22:]]
    bound = 2e-4 * np.abs(expected).max()
    np.testing.assert_allclose(np.concatenate(found), expected, atol=bound)
    assert decoder.rewind(12) == 0
    np.testing.assert_allclose(decoder.forward(tokens, every=True), expected, atol=bound)
    decoder.close()


@pytest.mark.parametrize("targets", ["all", "q,conv_out"])
def test_peft_opens_an_adapter(twins: Twins, targets: str, tmp_path: Path) -> None:
    """If only one of the two out_proj is adapted, PEFT adapts only that one."""
    theirs, (tokens,) = reference_model(twins.path), draw((21,), twins.model.config.vocab_size)
    adapter = LoRA(twins.model, 4, 12, targets)
    modules = {name.split(".lora_")[0] for name in adapter.shapes()}
    every = random_adapter(theirs, 4, seed=3)
    adapter.load_state({name: value for name, value in every.items() if name.split(".lora_")[0] in modules})
    FORMATS["peft"].save(adapter, tmp_path / "adapter")
    opened = PeftModel.from_pretrained(theirs, str(tmp_path / "adapter")).eval()
    assert {
        name.split(".lora_A")[0].removeprefix(PEFT_PREFIX)
        for name, _ in opened.named_modules()
        if name.endswith("lora_A")
    } == modules
    with torch.no_grad():
        expected = opened(input_ids=torch.tensor([tokens])).logits[0].numpy()
    found = Decoder(twins.model, adapter, compute="fp32").forward(tokens, every=True)
    np.testing.assert_allclose(found, expected, atol=2e-4 * np.abs(expected).max())


@pytest.mark.parametrize("name", PAIR_FORMATS)
def test_an_adapter_comes_back(twins: Twins, name: str, tmp_path: Path) -> None:
    """transformers calls two projections out_proj; each has its own adapter."""
    state = random_adapter(twins.reference, 4)
    adapter = adapter_of(twins.model, state)
    FORMATS[name].save(adapter, tmp_path / "adapter")
    found = formats.load(twins.model, tmp_path / "adapter").state()
    assert found.keys() == state.keys()
    assert all(np.array_equal(found[name], state[name]) for name in state)
