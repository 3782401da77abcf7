"""A branch unknown to the rest of the code trains, decodes and is counted; its state passes between chunks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from featherback import methods, models
from featherback.data.batch import Batch
from featherback.engine.formats.store import matrix
from featherback.engine.formats.types import TensorInfo, TensorType
from featherback.engine.host.paged import PagedArray
from featherback.exports import FORMATS, formats
from featherback.infer.decoder import Decoder
from featherback.infer.layout import Layout
from featherback.methods import METHODS
from featherback.methods.base import Draw
from featherback.methods.lcsb import LCSBOptions
from featherback.methods.memory.plan import Plan
from featherback.methods.mezo import MeZOOptions
from featherback.models.model import Model
from featherback.nn.attention import Attention
from featherback.nn.block import Block, adaptable, rotaries
from featherback.nn.context import Context
from tests.methods.conftest import Twins
from tests.methods.support import ALPHA, Result, adapter_of, assert_close, assert_equal, ours
from tests.methods.test_exact_gradients import BOUND, draw
from tests.support.leaky import LEAK, Carry, Leaky
from tests.support.oracle import random_adapter, reference, reference_model
from tests.support.pairs import PAIR_FORMATS
from tests.support.picked import Picked
from tests.support.tiers import some
from tests.support.tiny_models import TINY_QWEN2, tiny, write_tiny

CONFIG = tiny(TINY_QWEN2, num_key_value_heads=4, num_hidden_layers=4)  # q, k, v and o are square
LENGTHS = (33, 7, 1, 24)
TILES = {"mlp_tile": 256, "vocab_tile": 48}


def leaky(inward: str, outward: str, norm: str | None, biases: tuple[str, ...], kind: type[Leaky] = Leaky) -> Leaky:
    size = CONFIG.intermediate_size if inward == "gate_proj" else CONFIG.hidden_size
    return kind(inward, outward, size, CONFIG.hidden_size, norm, CONFIG.rms_norm_eps, biases)


def blocks_of(model: Model, kind: type[Leaky] = Leaky) -> list[Block]:
    """Return four blocks: with three branches; with two, the sum first; unchanged; with the sum after attention."""
    attention, mlp = model.blocks[0].branches
    first = leaky("q_proj", "o_proj", "input_layernorm", ("q_proj",), kind)
    second = leaky("k_proj", "v_proj", None, ("k_proj", "v_proj"), kind)
    last = leaky("gate_proj", "down_proj", "post_attention_layernorm", (), kind)
    return [Block([first, second, mlp]), Block([first, mlp]), Block([attention, mlp]), Block([attention, last])]


def with_blocks(path: Path, kind: type[Leaky] = Leaky) -> Model:
    model = models.load(path)
    model.blocks = blocks_of(model, kind)
    model.rotaries = rotaries(model.blocks)
    return model


def summed(x: torch.Tensor, inward: torch.nn.Module, outward: torch.nn.Module) -> torch.Tensor:
    """Compute what `Leaky` adds to x (1, T, D), with the full matrix of each token's share in each other."""
    ages = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
    shares = torch.where(ages < 0, 0.0, LEAK ** ages.clamp(min=0).float())
    return outward(shares @ inward(x))


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Twins:
    path = write_tiny(tmp_path_factory.mktemp("branches") / "m.gguf", CONFIG, TensorType.F32)
    theirs = reference_model(path)
    three, two, _, behind = theirs.model.layers

    def of_three(x: torch.Tensor, **_: Any) -> torch.Tensor:
        own = three.self_attn
        x = x + summed(three.input_layernorm(x), own.q_proj, own.o_proj)
        x = x + summed(x, own.k_proj, own.v_proj)
        return x + three.mlp(three.post_attention_layernorm(x))

    def of_two(x: torch.Tensor, **_: Any) -> torch.Tensor:
        x = x + summed(two.input_layernorm(x), two.self_attn.q_proj, two.self_attn.o_proj)
        return x + two.mlp(two.post_attention_layernorm(x))

    three.forward, two.forward = of_three, of_two
    behind.mlp.forward = lambda x: summed(x, behind.mlp.gate_proj, behind.mlp.down_proj)
    del behind.mlp.up_proj, two.self_attn.k_proj, two.self_attn.v_proj
    return Twins(path, with_blocks(path), theirs)


def check(twins: Twins, model: Model | None = None, method: str = "mesp", **plan: Any) -> Result:
    sequences, state = draw(LENGTHS, CONFIG.vocab_size), random_adapter(twins.reference, 4, seed=1)
    truth = reference(twins.reference, state, sequences)
    found = ours(model or twins.model, state, sequences, method=method, **TILES, **plan)
    assert_close(found, Result(truth.loss, truth.grads), BOUND)
    return found


KEEP = {"q": 4, "k": 4, "v": 4, "o": 4, "lse": 4, "m": 2, "k_proj in": 1, "gate_proj in": 4, "gate": 3, "up": 3}


@pytest.mark.parametrize(
    "plan",
    [
        {},
        {"chunk": 5},
        {"chunk": 32},
        {"keep": KEEP},
        {"chunk": 5, "keep": KEEP},
        {"keep_h": False},
        {"method": "mebp"},
    ],
    ids=str,
)
def test_gradients_are_autograds(twins: Twins, plan: dict[str, Any]) -> None:
    check(twins, **plan)


class NotBack(Leaky):
    """Fault: a chunk's gradient stays in it."""

    def _leave_to_previous_span(self, ctx: Context, ds: Any, leak: Any, carry: Carry) -> None:
        """Pass nothing back."""


class NotAgain(Leaky):
    """Fault: in the backward pass a chunk begins with the state of the last one."""

    def rebuild(self, ctx: Context, x: Callable[[], Any], w: Any, carry: Carry, kept: Any) -> None:
        super().rebuild(ctx, x, w, carry, kept)
        ctx.ops.cast(carry.state, carry.start(ctx))


@pytest.mark.parametrize("fault", [NotBack, NotAgain])
def test_a_lost_carry_is_found(twins: Twins, fault: type[Leaky]) -> None:
    model = with_blocks(twins.path, fault)
    check(twins, model)
    with pytest.raises(AssertionError):
        check(twins, model, chunk=16)


def test_the_other_methods(twins: Twins) -> None:
    """LCSB through all blocks equals MeSP; for a small epsilon, the mean of MeZO's losses is the loss."""
    state, sequences = random_adapter(twins.reference, 4, seed=1), draw(LENGTHS, CONFIG.vocab_size)
    exact = check(twins, chunk=16)
    everything = LCSBOptions(share=1.0)
    assert_equal(ours(twins.model, state, sequences, method="lcsb", options=everything, chunk=16, **TILES), exact)
    some = ours(twins.model, state, sequences, method="lcsb", chunk=16, **TILES)
    assert some.loss == exact.loss
    near = MeZOOptions(epsilon=1e-4)
    assert ours(twins.model, state, sequences, method="mezo", options=near, chunk=16).loss == pytest.approx(
        exact.loss, rel=1e-5
    )


@pytest.mark.parametrize("name", some(METHODS.names, 2))
def test_the_dry_run_counts_it(twins: Twins, name: str) -> None:
    """The dry run counts to the byte, in chunks and whole, with intermediates that only some layers can keep."""
    adapter = adapter_of(twins.model, random_adapter(twins.reference, 4))
    gradients = PagedArray(adapter.parameters.layers, adapter.layer_size)
    rng = np.random.default_rng(0)
    batch = Batch.from_sequences([rng.integers(0, CONFIG.vocab_size, n) for n in LENGTHS])
    batch.targets[:] = 1
    for chunk in (None, 16) if METHODS[name].can_chunk else (None,):
        keep = KEEP if name == "mesp" else {}  # what LCSB keeps depends on which blocks a step goes back through
        plan = Plan(tokens=sum(LENGTHS), chunk=chunk, mlp_tile=256, vocab_tile=33, keep=keep)
        at_work = methods.create(name, twins.model, adapter, plan)
        for step in range(2):  # of LCSB, one goes back through the first blocks, one through the others
            at_work.gradients(batch, 1.0, gradients, Draw(step=step))
        at_work.loss(batch)
        assert at_work.resources.scratch.high_water == at_work.resources.scratch.capacity
        at_work.close()


def test_targets_are_those_of_all_blocks(twins: Twins) -> None:
    model = twins.model
    assert adaptable(model.blocks) == ("q_proj", "o_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj")
    adapter = adapter_of(model, random_adapter(twins.reference, 4))
    assert [len(adapter.layout.kinds(layer)) for layer in range(4)] == [7, 5, 7, 6]


@pytest.mark.parametrize("name", PAIR_FORMATS)
def test_an_adapter_of_layers_that_differ_comes_back(twins: Twins, name: str, tmp_path: Path) -> None:
    adapter = adapter_of(twins.model, random_adapter(twins.reference, 4))
    FORMATS[name].save(adapter, tmp_path / "adapter")
    found, expected = formats.load(twins.model, tmp_path / "adapter").state(), adapter.state()
    assert found.keys() == expected.keys() == random_adapter(twins.reference, 4).keys()
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_sequences_do_not_share_prefixes_of_a_state(twins: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    common = list(range(20))
    batch = Batch.from_sequences([[*common, 30], [*common, 40]], [[-100] * 20 + [30], [-100] * 20 + [40]])
    method = methods.create("mesp", twins.model, None, Plan.default(CONFIG, tokens=batch.n_tokens))
    with method._begin(batch) as sweep:
        assert sweep.batch is batch
    monkeypatch.setattr(twins.model, "blocks", [twins.model.blocks[2]])
    with method._begin(batch) as sweep:
        assert sweep.batch.n_tokens == 23


@pytest.mark.parametrize(
    "layout", [Layout(), Layout("paged", "ram", 8), Layout("by_matrix", "file", 8, 256, 256)], ids=str
)
def test_decoding(twins: Twins, layout: Layout, tmp_path: Path) -> None:
    """A prompt in passes, then token by token. Rewinding starts from the beginning: no earlier state is stored."""
    (tokens,) = draw((41,), CONFIG.vocab_size)
    state = random_adapter(twins.reference, 4, seed=2)
    expected = reference(twins.reference, state, [tokens]).logits[0]
    adapter = adapter_of(twins.model, state)
    assert ALPHA == 16
    decoder = Decoder(twins.model, adapter, compute="fp32", layout=layout, folder=tmp_path)
    found = [decoder.forward(tokens[:30], every=True), decoder.forward(tokens[30:33], every=True)]
    found += [decoder.forward([token])[None] for token in tokens[33:]]
    np.testing.assert_allclose(np.concatenate(found), expected, atol=2e-4 * np.abs(expected).max())
    assert decoder.rewind(41) == 41
    assert decoder.rewind(40) == 0
    again = decoder.forward(tokens, every=True)
    np.testing.assert_allclose(again, expected, atol=2e-4 * np.abs(expected).max())
    if layout.weights != "resident":  # which holds the adapter's factors beside
        assert decoder.arenas[0].high_water <= decoder.arenas[0].capacity
    decoder.close()


def test_an_interrupted_pass_leaves_no_state(twins: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    (tokens,) = draw((12,), CONFIG.vocab_size)
    decoder = Decoder(twins.model, compute="fp32")
    expected = decoder.forward(tokens)
    decoder.rewind(0)
    decoder.forward(tokens[:5])
    forward = Attention.forward

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Attention, "forward", stop)
    with pytest.raises(KeyboardInterrupt):
        decoder.forward(tokens[5:])
    monkeypatch.setattr(Attention, "forward", forward)
    assert decoder.tokens == []
    np.testing.assert_array_equal(decoder.forward(tokens), expected)
    decoder.close()


@pytest.mark.parametrize("limit", [-np.inf, 0.0, np.inf], ids=["all", "some", "none"])
def test_what_depends_on_values_is_counted_for_all_of_them(twins: Twins, limit: float) -> None:
    """The plan does not know values: for any selection of tokens, the gradient is right and memory is enough."""
    model, theirs = models.load(twins.path), reference_model(twins.path)
    attention, mlp = model.blocks[0].branches
    picked = Picked("q_proj", "o_proj", CONFIG.hidden_size, CONFIG.hidden_size, limit)
    model.blocks = [Block([picked, mlp]), *[Block([attention, mlp])] * 3]
    layer = theirs.model.layers[0]

    def of_picked(x: torch.Tensor, **_: Any) -> torch.Tensor:
        own = layer.self_attn
        x = x + (x[..., :1] > limit) * own.o_proj(own.q_proj(x))
        return x + layer.mlp(layer.post_attention_layernorm(x))

    layer.forward = of_picked
    del layer.self_attn.k_proj, layer.self_attn.v_proj
    layer.self_attn.q_proj.bias = None
    sequences, state = draw(LENGTHS, CONFIG.vocab_size), random_adapter(theirs, 4, seed=1)
    truth = reference(theirs, state, sequences)
    truth.grads.update({name: np.zeros_like(state[name]) for name in state.keys() - truth.grads.keys()})
    found = ours(model, state, sequences, **TILES)
    assert_close(found, Result(truth.loss, truth.grads), BOUND)


def test_matrices_of_one_stored_tensor() -> None:
    """Experts are below each other in memory, a dimension of their own in the file, and targets on request."""
    stacked = Picked("in_exps", "out_proj", 12, 8, 0.0)
    stacked.stacks, stacked.requested = {"in_exps": 3}, ("in_exps",)
    block = Block([stacked])
    assert block.shapes == {"in_exps": (3, 4, 8), "out_proj": (8, 12)}
    assert adaptable([block]) == ("out_proj", "in_exps")  # what is adapted on request comes last

    experts, values = TensorInfo("experts", TensorType.F32, (3, 4, 8), 0, 384), np.zeros(384, np.uint8)
    store = SimpleNamespace(tensors={"experts": experts}, data=lambda _: values, file_of=Path)
    found = matrix(store, "experts")  # type: ignore[arg-type]
    assert (found.rows, found.cols) == block.projections["in_exps"]
