"""Gated delta nets: their carry between chunks, the ends of sequences, the state in decoding, and planted faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from peft import PeftModel

from featherback import methods, models
from featherback.data.batch import Batch
from featherback.engine.backend.cpu import CPUOperations
from featherback.engine.formats.types import TensorType
from featherback.errors import FeatherbackError
from featherback.exports import FORMATS, formats
from featherback.infer.decoder import Decoder
from featherback.infer.layout import Layout
from featherback.methods.memory.plan import Plan
from featherback.models.adapter import LoRA
from featherback.models.model import Model
from featherback.nn.branch import GroupedHeads
from featherback.nn.convolution import Convolution
from featherback.nn.delta_gates import DeltaGates, Gates
from featherback.nn.delta_net import DeltaCarry, DeltaNet
from featherback.nn.gated_attention import GatedAttention
from tests.methods.conftest import Twins
from tests.methods.support import Result, adapter_of, assert_close, ours
from tests.methods.test_exact_gradients import BOUND, draw
from tests.support.families.qwen35 import TINY_QWEN35, grouped
from tests.support.oracle import random_adapter, reference, reference_model
from tests.support.pairs import PAIR_FORMATS
from tests.support.tiers import some
from tests.support.tiny_models import write_tiny

LENGTHS = (1, 2, 6, 41, 1, 24)  # a chunk of 9 tokens begins where a sequence begins
TILES = {"mlp_tile": 256, "vocab_tile": 48}


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Twins:
    path = write_tiny(tmp_path_factory.mktemp("delta") / "m.gguf", TINY_QWEN35, TensorType.F32)
    return Twins(path, models.load(path), reference_model(path))


def check(twins: Twins, model: Model | None = None, **plan: Any) -> None:
    sequences, state = draw(LENGTHS, twins.model.config.vocab_size), random_adapter(twins.reference, 4, seed=1)
    truth = reference(twins.reference, state, sequences)
    found = ours(model or twins.model, state, sequences, **TILES, **plan)
    assert_close(found, Result(truth.loss, truth.grads), BOUND)


@pytest.mark.parametrize(
    "plan", some([{"keep_h": False}, {"method": "mebp"}, *({"chunk": n} for n in (3, 33, None, 1, 9))], 4)
)
def test_sequences_and_chunks(twins: Twins, plan: dict[str, Any]) -> None:
    check(twins, **plan)


def delta_rule(**changes: Any) -> Any:
    """Fault: the kernel gets other arguments, forward and backward."""
    names = ("q", "k", "v", "decay", "beta")

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        forward, backward = CPUOperations.delta_rule, CPUOperations.delta_rule_backward

        def changed(given: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(changes.get(name, lambda x: x)(x) for name, x in zip(names, given))

        monkeypatch.setattr(
            CPUOperations, "delta_rule", staticmethod(lambda *g, **kw: forward(*changed(g[:5]), *g[5:], **kw))
        )
        monkeypatch.setattr(
            CPUOperations,
            "delta_rule_backward",
            staticmethod(lambda dy, *g, **kw: backward(dy, *changed(g[:5]), *g[5:], **kw)),
        )

    return plant


def instead(owner: type, name: str, other: Callable[..., Any]) -> Any:
    return lambda monkeypatch: monkeypatch.setattr(owner, name, other)


def across_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: a sequence begins with the state of the previous one."""
    for name, place in (("delta_rule", 9), ("delta_rule_backward", 14)):
        kernel = getattr(CPUOperations, name)

        def joined(*given: Any, kernel: Any = kernel, place: int = place, **named: Any) -> None:
            arguments = list(given)
            arguments[place] = arguments[place][[0, -1]].copy()
            kernel(*arguments, **named)

        monkeypatch.setattr(CPUOperations, name, staticmethod(joined))


def gradient_stays(self: DeltaNet, ctx: Any, carry: DeltaCarry) -> None:
    ctx.ops.fill(carry.gradient, 0)


def gradient_goes_on(self: DeltaNet, ctx: Any, carry: DeltaCarry) -> None:
    """Leave a gradient to the previous span also where a sequence begins."""


def without_gate(self: GatedAttention, ctx: Any, state: Any, dy: Any, w: Any, do: Any, beside: Any) -> None:
    Projected(self, ctx, state, dy, w, do, beside)
    ctx.ops.fill(beside, 0)


def without_steps_gradient(self: DeltaGates, ctx: Any, gradients: Gates, *others: Any) -> None:
    ctx.ops.fill(gradients.decay, 0)
    GatesBackward(self, ctx, gradients, *others)


def raw(self: DeltaNet, ctx: Any) -> Any:
    """Fault: queries are not divided by the root of their size."""
    _, of_k = Lengths(self, ctx)
    return of_k, of_k


Projected, GatesBackward, Lengths = (GatedAttention._project_output_backward, DeltaGates.backward, DeltaNet._lengths)
FAULTS: dict[str, Any] = {
    "the decay forgotten": delta_rule(decay=np.zeros_like),
    "beta omitted": delta_rule(beta=np.ones_like),
    "queries and keys swapped": delta_rule(q=lambda x: -x),
    "A with the other sign": instead(DeltaGates, "_rate", lambda self, stored: -stored),
    "A taken for its logarithm": instead(DeltaGates, "_rate", lambda self, stored: -np.exp(stored)),
    "no gradient of the decay": instead(DeltaGates, "backward", without_steps_gradient),
    "queries not scaled": instead(DeltaNet, "_lengths", raw),
    "state not reset where a sequence begins": across_sequences,
    "the gradient of the gates omitted": instead(GatedAttention, "_project_output_backward", without_gate),
}
IN_CHUNKS: dict[str, Any] = {
    "the gradient of the state stays in its chunk": instead(DeltaNet, "_leave_to_previous_span", gradient_stays),
    "it goes to another sequence": instead(DeltaNet, "_leave_to_previous_span", gradient_goes_on),
    "a chunk begins without a state": instead(DeltaCarry, "start", lambda self, ctx: None),
    "rows of the convolution are not carried": instead(Convolution, "keep_last_rows", lambda *_: None),
    "their gradient is not": instead(Convolution, "leave_to_previous_span", lambda *_: None),
}


@pytest.mark.parametrize("name", [*FAULTS, *IN_CHUNKS])
def test_a_planted_fault_is_found(twins: Twins, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (FAULTS | IN_CHUNKS)[name](monkeypatch)
    with pytest.raises((AssertionError, FeatherbackError)):  # a decay of the wrong sign is an error of its own
        check(twins, chunk=9 if name in IN_CHUNKS else None)


@pytest.mark.parametrize("name", ["heads grouped", "the norm's weights from one", "every layer a delta net's norm"])
def test_a_planted_fault_of_the_block_is_found(twins: Twins, name: str) -> None:
    model = models.load(twins.path)
    for block in model.blocks:
        first = block.branches[0]
        if name == "heads grouped" and isinstance(first, DeltaNet):
            first.tiled = False
        if name == "every layer a delta net's norm":
            first.eps = 0.0
    if name == "the norm's weights from one":
        layer = model.layer

        def from_one(index: int) -> Any:
            found = layer(index)
            vectors = {part: v - 1 if part.endswith("norm") else v for part, v in found.vectors.items()}
            return replace(found, vectors=vectors)

        model.layer = from_one  # type: ignore[method-assign]
    with pytest.raises(AssertionError):
        check(twins, model)


@pytest.mark.parametrize("value", [0.5, float("nan"), float("-inf")])
def test_a_decay_that_lets_states_grow(twins: Twins, value: float) -> None:
    model = models.load(twins.path)
    layer = model.layer

    def damaged(index: int) -> Any:
        found = layer(index)
        vectors = {part: np.full_like(v, value) if part == "decay" else v for part, v in found.vectors.items()}
        return replace(found, vectors=vectors)

    model.layer = damaged  # type: ignore[method-assign]
    with pytest.raises(FeatherbackError, match=r"The decay A of the delta net of layer 0 holds .*; it must be finite"):
        check(twins, model)


def test_common_beginnings_are_not_shared(twins: Twins) -> None:
    """A later sequence would begin with the state after the common tokens, which the kernel does not take twice."""
    common = list(range(20))
    batch = Batch.from_sequences([[*common, 30], [*common, 40]], [[-100] * 20 + [30], [-100] * 20 + [40]])
    method = methods.create("mesp", twins.model, None, Plan.default(twins.model.config, tokens=batch.n_tokens))
    with method._begin(batch) as sweep:
        assert sweep.batch is batch
    method.close()


@pytest.mark.parametrize("layout", [Layout(), Layout("by_matrix", "file", 8, 256, 256)], ids=str)
def test_decoding(twins: Twins, layout: Layout, tmp_path: Path) -> None:
    """A prompt in passes, one of them shorter than the taps, then token by token, and once more from the start."""
    (tokens,) = draw((51,), twins.model.config.vocab_size)
    state = random_adapter(twins.reference, 4, seed=2)
    expected = reference(twins.reference, state, [tokens]).logits[0]
    decoder = Decoder(twins.model, adapter_of(twins.model, state), compute="fp32", layout=layout, folder=tmp_path)
    found = [decoder.forward(tokens[:37], every=True), decoder.forward(tokens[37:39], every=True)]
    found += [decoder.forward([token])[None] for token in tokens[39:]]
    bound = 2e-4 * np.abs(expected).max()
    np.testing.assert_allclose(np.concatenate(found), expected, atol=bound)
    assert decoder.rewind(12) == 0
    np.testing.assert_allclose(decoder.forward(tokens, every=True), expected, atol=bound)
    decoder.close()


def test_the_two_orders_of_heads() -> None:
    heads = GroupedHeads(2, 6, 1)
    assert heads.tiled().tolist() == [0, 3, 1, 4, 2, 5]
    tiled = np.arange(6)[heads.tiled()]
    assert grouped(tiled, 2, 6).tolist() == list(range(6))
    assert heads.after(3).tiled().tolist() == [0, 1, 2, 3, 6, 4, 7, 5, 8]


@pytest.mark.parametrize("name", ["qwen35", "qwen35moe", "qwen3next"])
def test_peft_opens_an_adapter(all_twins: dict[str, Twins], name: str, tmp_path: Path) -> None:
    twins = all_twins[name]
    theirs, (tokens,) = reference_model(twins.path), draw((21,), twins.model.config.vocab_size)
    adapter = LoRA(twins.model, 4, 12)
    adapter.load_state(random_adapter(theirs, 4, seed=3))
    FORMATS["peft"].save(adapter, tmp_path / "adapter")
    opened = PeftModel.from_pretrained(theirs, str(tmp_path / "adapter")).eval()
    with torch.no_grad():
        expected = opened(input_ids=torch.tensor([tokens])).logits[0].numpy()
    found = Decoder(twins.model, adapter, compute="fp32").forward(tokens, every=True)
    np.testing.assert_allclose(found, expected, atol=2e-4 * np.abs(expected).max())


@pytest.mark.parametrize("case", ["qwen35", "qwen35moe", "qwen3next"])
@pytest.mark.parametrize("name", PAIR_FORMATS)
def test_an_adapter_comes_back(all_twins: dict[str, Twins], case: str, name: str, tmp_path: Path) -> None:
    twins = all_twins[case]
    state = random_adapter(twins.reference, 4)
    adapter = adapter_of(twins.model, state)
    FORMATS[name].save(adapter, tmp_path / "adapter")
    found = formats.load(twins.model, tmp_path / "adapter").state()
    assert found.keys() == state.keys()
    assert all(np.array_equal(found[name], state[name]) for name in state)


def test_a_gguf_adapter_has_the_order_of_the_gguf_model(twins: Twins, tmp_path: Path) -> None:
    """Rows of B where V heads are outputs, columns of A where they are inputs: added to the file's own weights."""
    state = random_adapter(twins.reference, 4)
    FORMATS["gguf"].save(adapter_of(twins.model, state), tmp_path / "a.gguf")
    stored = {tensor.name: tensor.data for tensor in GGUFReader(tmp_path / "a.gguf").tensors}
    layer, heads, before = "model.layers.0.linear_attn.", (2, 8), 2 * 24
    for module, part in {"in_proj_z": "attn_gate", "in_proj_a": "ssm_alpha", "in_proj_b": "ssm_beta"}.items():
        rows = stored[f"blk.0.{part}.weight.lora_b"]
        assert np.array_equal(grouped(rows, *heads), state[f"{layer}{module}.lora_B.weight"])
        assert not np.array_equal(rows, state[f"{layer}{module}.lora_B.weight"])
    qkv, expected = stored["blk.0.attn_qkv.weight.lora_b"], state[f"{layer}in_proj_qkv.lora_B.weight"]
    assert np.array_equal(qkv[:before], expected[:before])
    assert np.array_equal(grouped(qkv[before:], *heads), expected[before:])
    columns = stored["blk.0.ssm_out.weight.lora_a"].T
    assert np.array_equal(grouped(columns, *heads).T, state[f"{layer}out_proj.lora_A.weight"])


def test_a_folder_with_images(twins: Twins, tmp_path: Path) -> None:
    """transformers names the text model's parts otherwise where there is a vision model; its weights are not used."""
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "out_hidden_size": 96}
    text = twins.reference.config.to_dict()
    config = Qwen3_5Config(text_config=text, vision_config=vision, tie_word_embeddings=True)
    theirs = Qwen3_5ForConditionalGeneration(config).float().eval()
    theirs.model.language_model.load_state_dict(twins.reference.model.state_dict())
    theirs.tie_weights()
    theirs.save_pretrained(tmp_path / "both")
    model, (tokens,) = models.load(tmp_path / "both"), draw((21,), 101)
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor([tokens])).logits[0].numpy()
    found = Decoder(model, compute="fp32").forward(tokens, every=True)
    np.testing.assert_allclose(found, expected, atol=2e-4 * np.abs(expected).max())
    names = {name for name, _ in theirs.named_parameters()}
    assert {f"{name.split('.lora_')[0]}.weight" for name in LoRA(model, 2, 4).shapes()} <= names
