"""MatMul-free LM: gradients of the straight-through estimator, the carry, decoding, adapters' files, and folders."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel

import featherback as fb
from featherback import models
from featherback.engine.backend.cpu import CPUOperations
from featherback.engine.formats.types import TensorType
from featherback.errors import FeatherbackError
from featherback.exports import FORMATS, formats
from featherback.infer.decoder import Decoder
from featherback.infer.layout import Layout
from featherback.models.adapter import LoRA
from featherback.models.families.hgrn_bit import BOUNDS, lower_bounds
from featherback.models.model import Model
from featherback.models.streams import floats_of
from featherback.nn import bit_head, bit_linear
from featherback.nn.mlgru import MLGRU
from tests.methods.support import Result, adapter_of, assert_close, errors, ours
from tests.methods.test_exact_gradients import BOUND, draw
from tests.support import hgrn_bit as oracle
from tests.support.oracle import PEFT_PREFIX, random_adapter, reference

LENGTHS = (1, 2, 7, 5, 1, 24)
MOST_TAKEN = 10  # of some 100,000 roundings


class Twins:
    """A folder, our model of it, and the reference in float64."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.theirs: Any = oracle.Model({**oracle.CONFIG, **changes}).double().eval()
        self.path = oracle.write(folder, self.theirs)
        self.model: Model = models.load(self.path)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEATHERBACK_CACHE", str(cache))


@pytest.fixture(scope="module")
def twins(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Twins:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEATHERBACK_CACHE", str(cache))
        return Twins(tmp_path_factory.mktemp("hgrn") / "model")


def check(twins: Twins, monkeypatch: pytest.MonkeyPatch, method: str = "mesp", **plan: Any) -> None:
    """Compare loss and gradients. Where a number is at the border of two codes, the reference has ours."""
    sequences = draw(LENGTHS, twins.model.config.vocab_size)
    state = random_adapter(twins.theirs, 4, seed=1)
    with oracle.recording(monkeypatch) as recorded:
        found = ours(twins.model, state, sequences, method=method, **{"vocab_tile": 48, **plan})

    def before(peft: Any, first: int, count: int) -> None:
        twins.theirs.codes = recorded.of(first)

    twins.theirs.taken = 0
    try:
        truth = reference(twins.theirs, state, sequences, before=before)
    finally:
        twins.theirs.codes = None
    assert_close(found, Result(truth.loss, truth.grads), BOUND)
    assert twins.theirs.taken <= MOST_TAKEN


@pytest.mark.parametrize("chunk", [None, 1, 2, 5, 9])
def test_gradients(twins: Twins, chunk: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    check(twins, monkeypatch, chunk=chunk)


def test_gradients_of_mebp(twins: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    check(twins, monkeypatch, "mebp")


def test_without_lower_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(Twins(tmp_path / "model", use_lower_bound=False), monkeypatch, chunk=9)


def identity(monkeypatch: pytest.MonkeyPatch, twins: Twins) -> None:
    """Leave activations unrounded on both sides."""
    monkeypatch.setattr(CPUOperations, "round_rows", CPUOperations.cast)
    monkeypatch.setattr(twins.theirs, "quantises", False)


@pytest.mark.parametrize("chunk", [None, 5])
def test_finite_differences_without_rounding(twins: Twins, chunk: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss is then differentiable: a step along each module's gradient changes it by step * |gradient|^2."""
    identity(monkeypatch, twins)
    sequences, state = draw(LENGTHS, twins.model.config.vocab_size), random_adapter(twins.theirs, 4, seed=1)
    found = ours(twins.model, state, sequences, chunk=chunk).grads
    assert_close(Result(0, found), Result(0, reference(twins.theirs, state, sequences).grads), BOUND)
    for module in ("f_proj", "i_proj", "g_proj", "o_proj", "gate_proj", "down_proj"):
        mine = {name: gradient for name, gradient in found.items() if module in name}
        size = sum(float(np.square(g, dtype=np.float64).sum()) for g in mine.values())
        step = 0.002 / size**0.5  # 0.002 in the direction of the gradient

        def loss(by: float, mine: dict[str, Any] = mine) -> float:
            moved = {name: x + np.float32(by) * mine[name] if name in mine else x for name, x in state.items()}
            with torch.no_grad():
                return reference_loss(twins, moved, sequences)

        assert abs((loss(step) - loss(-step)) / (2 * step * size) - 1) < 1e-3, module


def reference_loss(twins: Twins, state: dict[str, Any], sequences: list[list[int]]) -> float:
    """Our own loss, from our logits, with the cross-entropy in float64."""
    decoder, total, count = Decoder(twins.model, adapter_of(twins.model, state), compute="fp32"), 0.0, 0
    for sequence in (each for each in sequences if len(each) > 1):
        decoder.rewind(0)
        logits = torch.from_numpy(decoder.forward(sequence, every=True)[:-1].copy()).double()
        total += float(torch.nn.functional.cross_entropy(logits, torch.tensor(sequence[1:]), reduction="sum"))
        count += len(sequence) - 1
    decoder.close()
    return total / count


# --- Planted faults -----------------------------------------------------------------------------------------

Fault = Callable[[pytest.MonkeyPatch], None]


def without_bounds(patch: pytest.MonkeyPatch) -> None:
    """The lower bounds are ignored."""

    def zeros(self: MLGRU, ctx: Any, w: Any) -> Any:
        bound = ctx.floats("zeros", self.size)
        ctx.ops.fill(bound, 0)
        return bound

    patch.setattr(MLGRU, "_bound", zeros)


def without_earlier_h(patch: pytest.MonkeyPatch) -> None:
    """The gradient of f lacks h_{t-1}."""
    backward = CPUOperations.gated_recurrence_backward

    def wrong(dh: Any, i: Any, f: Any, bound: Any, before: Any, h: Any, *rest: Any) -> None:
        backward(dh, i, f, bound, np.zeros_like(before), np.zeros_like(h), *rest)

    patch.setattr(CPUOperations, "gated_recurrence_backward", staticmethod(wrong))


def without_reset(patch: pytest.MonkeyPatch) -> None:
    """A sequence begins with the state of the previous one."""

    def through(self: MLGRU, ctx: Any, i: Any, f: Any, w: Any, before: Any, h: Any) -> None:
        state = before.reshape(self.size)
        if not ctx.span.start:
            ctx.ops.fill(state, 0)
        ctx.ops.gated_recurrence(i, f, self._bound(ctx, w), state, h)

    patch.setattr(MLGRU, "_recur", through)


def without_gradient_from_behind(patch: pytest.MonkeyPatch) -> None:
    """A chunk's gradient stays in it."""
    backward = MLGRU._recur_backward

    def wrong(self: MLGRU, ctx: Any, *rest: Any) -> None:
        carry = rest[5]
        backward(self, ctx, *rest)
        ctx.ops.fill(carry.behind, 0)

    patch.setattr(MLGRU, "_recur_backward", wrong)


def without_gradient_of_inner_norms(patch: pytest.MonkeyPatch) -> None:
    """The gradient passes inner norms unchanged."""
    backward = CPUOperations.rms_norm_backward

    def wrong(dn: Any, x: Any, weight: Any, eps: float, dx: Any, *, accumulate: bool = True) -> None:
        if eps != bit_linear.EPS:
            backward(dn, x, weight, eps, dx, accumulate=accumulate)
        elif accumulate:
            dx += dn
        else:
            dx[...] = dn

    patch.setattr(CPUOperations, "rms_norm_backward", staticmethod(wrong))


def with_rounded_input_of_a(patch: pytest.MonkeyPatch) -> None:
    """A reads what the product reads."""

    def rounded(ctx: Any, x: Any) -> Any:
        out = ctx.operands("rounded", *x.shape)
        ctx.ops.round_rows(x, out)
        return out

    patch.setattr(bit_linear, "as_operand", rounded)


def with_eps_of_the_module(patch: pytest.MonkeyPatch) -> None:
    """The inner norms have the eps that the module states, and not that of the fused layer."""
    patch.setattr(bit_linear, "EPS", 1e-8)


def with_gates_exchanged(patch: pytest.MonkeyPatch) -> None:
    """The output is silu(rms(g)) h, as in other recurrent models."""

    def exchanged(self: MLGRU, ctx: Any, g: Any, h: Any, w: Any, o: Any) -> None:
        with ctx.frame():
            (c,) = self._rooms(ctx, "c")
            ctx.ops.rms_norm(h, w.vectors["output_norm"], self.eps, c)
            ctx.ops.glu(g, c, o, "silu")

    patch.setattr(MLGRU, "_gated", exchanged)


def without_norm_in_the_head(patch: pytest.MonkeyPatch) -> None:
    """The head has no norm of its own."""

    def plain(ctx: Any, x: Any, norm: Any) -> Any:
        q = ctx.operands("rounded", *x.shape)
        ctx.ops.round_rows(x, q)
        return q

    patch.setattr(bit_head, "quantised", plain)


FAULTS: tuple[Fault, ...] = (
    without_bounds,
    without_earlier_h,
    without_reset,
    without_gradient_from_behind,
    without_gradient_of_inner_norms,
    with_rounded_input_of_a,
    with_eps_of_the_module,
    with_gates_exchanged,
    without_norm_in_the_head,
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found(twins: Twins, fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        check(twins, monkeypatch, chunk=5)


# --- Decoding, other precisions, other kinds ----------------------------------------------------------------


@pytest.mark.parametrize("layout", [Layout(), Layout("by_matrix", "file", 8, 256, 256)], ids=str)
def test_decoding(twins: Twins, layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt in passes, then token by token, then once more from the start: the same logits to the bit of a code.

    Without rounding of activations, which is not continuous.
    """
    identity(monkeypatch, twins)
    (tokens,) = draw((31,), twins.model.config.vocab_size)
    state = random_adapter(twins.theirs, 4, seed=2)
    expected = reference(twins.theirs, state, [tokens]).logits[0]
    decoder = Decoder(twins.model, adapter_of(twins.model, state), compute="fp32", layout=layout, folder=tmp_path)
    found = [decoder.forward(tokens[:20], every=True), decoder.forward(tokens[20:22], every=True)]
    found += [decoder.forward([token])[None] for token in tokens[22:]]
    bound = 2e-4 * np.abs(expected).max()
    np.testing.assert_allclose(np.concatenate(found), expected, atol=bound)
    assert decoder.rewind(12) == 0
    np.testing.assert_allclose(decoder.forward(tokens, every=True), expected, atol=bound)
    decoder.close()


@pytest.mark.parametrize("seed", [3, 4])
def test_greedy_text(twins: Twins, seed: int) -> None:
    """With all rounding, and without taking over codes: the likeliest token is the reference's, 16 times."""
    (tokens,) = draw((9,), twins.model.config.vocab_size, seed)
    decoder = Decoder(twins.model, None, compute="fp32")
    logits, theirs, mine = decoder.forward(tokens), list(tokens), list(tokens)
    for _ in range(16):
        mine.append(int(logits.argmax()))
        logits = decoder.forward(mine[-1:])
        with torch.no_grad():
            theirs.append(int(twins.theirs(torch.tensor([theirs])).logits[0, -1].argmax()))
    decoder.close()
    assert mine == theirs


@pytest.mark.parametrize("compute", ["bf16", "int16"])
def test_other_computes(twins: Twins, compute: str) -> None:
    """Without taking over codes: roundings then differ, so this only bounds the error."""
    sequences, state = draw((40,), twins.model.config.vocab_size), random_adapter(twins.theirs, 4, seed=1)
    truth = reference(twins.theirs, state, sequences)
    found = ours(twins.model, state, sequences, compute=compute)
    assert abs(found.loss / truth.loss - 1) < 0.02
    mine, expected = (np.concatenate([x[name].ravel() for name in truth.grads]) for x in (found.grads, truth.grads))
    assert mine @ expected > 0.99 * np.linalg.norm(mine) * np.linalg.norm(expected)


def test_ia3(twins: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    """IA3 scales the input of down_proj before its inner norm, and the outputs of the others."""
    from featherback.models.adapter import Adapter
    from featherback.models.form import Form
    from featherback.nn.adapters.ia3 import IA3Kind

    identity(monkeypatch, twins)
    (tokens,) = draw((24,), twins.model.config.vocab_size)
    adapter = Adapter(twins.model, Form(IA3Kind(), ("i", "f", "o", "down", "gate")))
    scales = np.random.default_rng(0)
    state = {name: scales.uniform(0.6, 1.5, x.shape).astype(np.float32) for name, x in adapter.state().items()}
    adapter.load_state(state)
    loss, found = fb.gradients(twins.model, adapter, tokens, compute="fp32")
    leaves = {name: torch.tensor(x, dtype=torch.float64, requires_grad=True) for name, x in state.items()}
    handles = []
    for name, scale in leaves.items():
        module = twins.theirs.get_submodule(name.split(".ia3_")[0])
        if "down_proj" in name:
            handles.append(module.register_forward_pre_hook(lambda _, x, s=scale: (x[0] * s.reshape(-1),)))
        else:
            handles.append(module.register_forward_hook(lambda _, x, y, s=scale: y * s.reshape(-1)))
    logits = twins.theirs(torch.tensor([tokens])).logits[0, :-1]
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor(tokens[1:]))
    expected.backward()
    for handle in handles:
        handle.remove()
    assert abs(loss / expected.item() - 1) < 1e-5
    truth = {name: leaf.grad.numpy() for name, leaf in leaves.items() if leaf.grad is not None}
    assert max(errors(found, truth).values()) < BOUND


# --- Adapters' files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("targets", ["all", "f,down"])
def test_peft_opens_an_adapter(twins: Twins, targets: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identity(monkeypatch, twins)
    (tokens,) = draw((21,), twins.model.config.vocab_size)
    adapter = LoRA(twins.model, 4, 12, targets)
    every = random_adapter(twins.theirs, 4, seed=3)
    adapter.load_state({name: every[name] for name in adapter.shapes()})
    FORMATS["peft"].save(adapter, tmp_path / "adapter")
    theirs = oracle.Model(oracle.CONFIG).double().eval()
    monkeypatch.setattr(theirs, "quantises", False, raising=False)
    opened = PeftModel.from_pretrained(theirs, str(tmp_path / "adapter")).eval()  # type: ignore[arg-type]
    assert {
        name.split(".lora_A")[0].removeprefix(PEFT_PREFIX)
        for name, _ in opened.named_modules()
        if name.endswith("lora_A")
    } == {name.split(".lora_")[0] for name in adapter.shapes()}
    with torch.no_grad():
        expected = opened(input_ids=torch.tensor([tokens])).logits[0].numpy()
    found = Decoder(twins.model, adapter, compute="fp32").forward(tokens, every=True)
    np.testing.assert_allclose(found, expected, atol=2e-4 * np.abs(expected).max())
    back = formats.load(twins.model, tmp_path / "adapter").state()
    assert all(np.array_equal(back[name], every[name]) for name in adapter.shapes())


@pytest.mark.parametrize("target", ["gguf", "merged", "mlx", "ollama"])
def test_what_no_other_program_can_load_is_rejected(twins: Twins, target: str, tmp_path: Path) -> None:
    FORMATS["peft"].save(LoRA(twins.model, 2, 4), tmp_path / "adapter")
    with pytest.raises(FeatherbackError, match=r"MatMul-free LM cannot be exported as .*; use .*peft'?\."):
        fb.export(tmp_path / "adapter", target, model=twins.path, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    fb.export(tmp_path / "adapter", "peft", model=twins.path, out=tmp_path / "out")


def test_dora_is_rejected(twins: Twins) -> None:
    with pytest.raises(FeatherbackError, match=r"DoRA reads the weights of i_proj, which are ternary here"):
        LoRA(twins.model, 4, 8, dora=True)


# --- Folders ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_weights_are_ternary(tmp_path: Path, dtype: torch.dtype) -> None:
    """The weights of every BitLinear layer are ternary, also the head's; the embedding's are not."""
    theirs = oracle.Model(oracle.CONFIG)
    model = models.load(oracle.write(tmp_path / "model", theirs, dtype))
    found = {"lm_head.weight": floats_of(model.head.weight)}
    for layer in range(model.config.num_hidden_layers):
        for part, stored in model.layer(layer).matrices.items():
            found[model.stored_name(part, layer)] = floats_of(stored)
    for name, values in found.items():
        stored = theirs.state_dict()[name].to(dtype).double()
        d = stored.abs().mean()
        np.testing.assert_allclose(values, ((stored / d).round().clamp(-1, 1) * d).numpy(), rtol=1e-7)
        assert len(np.unique(values)) == 3
    assert len(found) == 1 + 6 * model.config.num_hidden_layers
    embedding = theirs.state_dict()["model.embeddings.weight"].to(dtype).float().numpy()
    np.testing.assert_array_equal(floats_of(model.embed_tokens), embedding)
    bounds = theirs.state_dict()[BOUNDS].to(dtype).float()
    shares = bounds.double().softmax(0)
    expected = (shares.cumsum(0) - shares[0]).numpy()
    for layer, row in enumerate(expected):
        np.testing.assert_allclose(model.layer(layer).vectors["lower_bound"], row, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(lower_bounds(bounds.numpy())[0], 0)


def test_what_would_be_converted_is_foreseen(twins: Twins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEATHERBACK_CACHE", str(tmp_path / "empty"))
    foreseen = models.load(twins.path, without_converting=True)
    assert not (tmp_path / "empty" / "weights").exists()
    kinds = [{name: info.type for name, info in each.store.tensors.items()} for each in (foreseen, twins.model)]
    assert kinds[0] == kinds[1]
    assert {TensorType.TERNARY, TensorType.F32} <= set(kinds[0].values())


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "expansion": ({"expand_ratio": 2}, r"The entry expand_ratio of .* is 2, which is not supported"),
    "convolution": ({"use_short_conv": True}, r"The entry use_short_conv of .* is True, which is not supported"),
    "tied": ({"tie_word_embeddings": True}, r"The entry tie_word_embeddings of .* is True"),
    "activation": ({"hidden_act": "relu"}, r"The entry hidden_act of .* is 'relu'"),
    "width": ({"intermediate_size": 96}, r"does not fit its configuration: tensor model\.layers\.0\.mlp"),
    "no width": ({"intermediate_size": -1}, r"intermediate_size is -1; it must be positive"),
    "huge width": ({"hidden_size": 1 << 40}, r"The entry hidden_size of .* is 1099511627776"),
    "text": ({"hidden_size": "128"}, r"The entry hidden_size of .* is '128'"),
    "ratio": ({"hidden_ratio": 1.5, "intermediate_size": None}, r"The entry hidden_ratio of .* is 1\.5"),
    "layers": ({"num_hidden_layers": 70_000}, r"claims 70000 layers but holds only \d+ tensors"),
    "no layers": ({"num_hidden_layers": 0}, r"num_hidden_layers is 0|need \(0, 128\)"),
    "flag": ({"use_lower_bound": "yes"}, r"The entry use_lower_bound of .* is 'yes'"),
    "unbounded": ({"use_lower_bound": False}, r"not part of a supported hgrn_bit model: 'model\.lower_bounds'"),
    "eps": ({"rms_norm_eps": 0}, r"rms_norm_eps is 0\.0; it must be finite and positive"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_other_configurations_are_rejected(twins: Twins, case: str, tmp_path: Path) -> None:
    changes, message = HOSTILE[case]
    folder = oracle.write(tmp_path / "model", twins.theirs, **changes)
    with pytest.raises(FeatherbackError, match=message) as raised:
        models.load(folder)
    assert "\n" not in str(raised.value)
    assert len(re.findall(r"\.(?= |$)", str(raised.value))) == 1


BROKEN: dict[str, tuple[Callable[[dict[str, torch.Tensor]], Any], str]] = {
    "no bounds": (lambda t: t.pop(BOUNDS), r"tensor model\.lower_bounds is missing"),
    "bounds of fewer layers": (
        lambda t: t.update({BOUNDS: t[BOUNDS][:2].clone()}),
        r"tensor model\.lower_bounds has shape \(2, 128\)",
    ),
    "bounds that are NaN": (lambda t: t[BOUNDS].fill_(np.nan), r"lower_bound of layer 1 holds NaN or infinity"),
    "weight that is NaN": (
        lambda t: t["model.layers.1.attn.f_proj.weight"][3].fill_(np.nan),
        r"Tensor model\.layers\.1\.attn\.f_proj\.weight of .* holds a value that is not finite",
    ),
    "infinite head": (
        lambda t: t["lm_head.weight"][3].fill_(np.inf),
        r"Tensor lm_head\.weight of .* holds a value that is not finite",
    ),
    "head's norm is NaN": (lambda t: t["lm_head.norm.weight"].fill_(np.nan), r"lm_head_norm holds NaN or infinity"),
    "head without norm": (lambda t: t.pop("lm_head.norm.weight"), r"tensor lm_head\.norm\.weight \(128,\) is missing"),
    "matrix for a norm": (
        lambda t: t.update({"model.layers.0.attn.i_proj.norm.weight": torch.ones(128, 128)}),
        r"tensor model\.layers\.0\.attn\.i_proj\.norm\.weight has shape \(128, 128\)",
    ),
    "vector for a matrix": (
        lambda t: t.update({"model.layers.0.attn.i_proj.weight": torch.ones(128)}),
        r"tensor model\.layers\.0\.attn\.i_proj\.weight has shape \(128,\)",
    ),
    "own bound": (
        lambda t: t.update({"model.layers.0.attn.bias": torch.ones(128)}),
        r"not part of a supported hgrn_bit model: 'model\.layers\.0\.attn\.bias'",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_folders_are_rejected(twins: Twins, case: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    from featherback.models.finite import check_weights

    breaks, message = BROKEN[case]
    folder = oracle.write(tmp_path / "model", twins.theirs)
    tensors = load_file(folder / "model.safetensors")
    breaks(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(FeatherbackError, match=message):
        check_weights(models.load(folder))


def test_the_default_width(tmp_path: Path, twins: Twins) -> None:
    """Two thirds of hidden_ratio * hidden_size, rounded up to a multiple of 256; null means the default."""
    folder = oracle.write(tmp_path / "model", twins.theirs, intermediate_size=None, hidden_ratio=3)
    with pytest.raises(FeatherbackError, match=r"gate_proj\.weight has shape \(300, 128\), .* needs \(512, 128\)"):
        models.load(folder)


def test_quantising_is_rejected(twins: Twins) -> None:
    with pytest.raises(FeatherbackError, match=r"converted to ternary weights when it is opened; remove (--)?quantize"):
        models.load(twins.path, "q4_0")


def test_a_whole_model_cannot_be_trained(twins: Twins, tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text(json.dumps({"text": "a b c"}) + "\n", encoding="utf-8")
    with pytest.raises(FeatherbackError, match=r"cannot be trained, because they are converted"):
        fb.train(twins.path, data=tmp_path / "data.jsonl", out=tmp_path / "run", train="full", steps=1)
