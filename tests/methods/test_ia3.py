"""IA3 against autograd of PEFT's own, tensor by tensor; files both ways; merging; its options."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import IA3Config, PeftModel, get_peft_model

from featherback import methods, models
from featherback.data.batch import Batch
from featherback.engine.formats.types import TensorType
from featherback.engine.host.paged import PagedArray
from featherback.errors import FeatherbackError
from featherback.exports import formats
from featherback.exports.formats import peft
from featherback.exports.formats.pairs import pairs_of
from featherback.exports.merged_gguf import MergedGGUF
from featherback.infer.decoder import Decoder
from featherback.methods import METHODS
from featherback.methods.memory.plan import Plan
from featherback.models.adapter import Adapter
from featherback.models.form import Form
from featherback.nn.adapters import KINDS
from featherback.nn.adapters.ia3 import IA3Kind, ScaledInput, ScaledOutput
from featherback.nn.linear import Projection
from tests.methods.conftest import Twins
from tests.methods.support import Result, assert_close, assert_equal
from tests.methods.test_exact_gradients import BOUND, draw
from tests.support import families
from tests.support.oracle import PEFT_PREFIX, _loss

MODELS = (*families.MODELS, "wide-heads")
USUAL = KINDS["ia3"].targets
SEQUENCES = (5, 1, 33)


@dataclass(frozen=True)
class Case:
    """Return an adapter whose scales are away from 1, some of them 0."""

    twins: Twins
    adapter: Adapter
    sequences: list[list[int]]


def case(
    twins: Twins, targets: tuple[str, ...] = USUAL, feedforward: tuple[str, ...] = ("down_proj",), zeros: bool = True
) -> Case:
    adapter, rng = Adapter(twins.model, Form(IA3Kind(feedforward=feedforward), targets)), np.random.default_rng(3)
    assert all((values == 1).all() for values in adapter.state().values())
    state = {name: rng.uniform(0.5, 1.5, shape).astype(np.float32) for name, shape in adapter.shapes().items()}
    for values in state.values():
        values.reshape(-1)[3] = 0 if zeros else 1
    adapter.load_state(state)
    return Case(twins, adapter, draw(SEQUENCES, twins.model.config.vocab_size))


@contextmanager
def in_peft(given: Case) -> Iterator[PeftModel]:
    """Return PEFT's own model, with the adapter's values."""
    adapter = given.adapter
    kind = adapter.form.kind
    assert isinstance(kind, IA3Kind)
    modules = {name.rsplit(".", 2)[-2]: shape for name, shape in adapter.shapes().items()}
    scaled_inputs = [name for name, shape in modules.items() if shape[0] == 1]
    config = IA3Config(target_modules=list(modules), feedforward_modules=scaled_inputs)
    model = get_peft_model(given.twins.reference, config).eval()
    state, filled = adapter.state(), set()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                filled.add(_public(name))
                parameter.copy_(torch.from_numpy(state[_public(name)]))
    assert filled == state.keys()
    yield model
    model.unload()


def _public(name: str) -> str:
    return name.removeprefix(PEFT_PREFIX).removesuffix(".default")


def truth(given: Case) -> Result:
    with in_peft(given) as model:
        loss, _ = _loss(model, given.sequences, None, lambda *_: None)
        loss.backward()
        grads = {_public(name): p.grad.numpy().copy() for name, p in model.named_parameters() if p.grad is not None}
    return Result(loss.item(), grads)


def ours(given: Case, method: str = "mesp", **plan: Any) -> Result:
    """Return a method's loss and gradients, in as much memory as its dry run predicted."""
    adapter, batch = given.adapter, Batch.from_sequences(given.sequences)
    gradients = PagedArray(adapter.parameters.layers, adapter.layer_size)
    tile = 256 if given.twins.model.config.intermediate_size > 256 else 64
    chosen = Plan(**{"tokens": batch.n_tokens, "compute": "fp32", "mlp_tile": tile, "vocab_tile": 48, **plan})
    at_work = methods.create(method, given.twins.model, adapter, chosen)
    total = at_work.gradients(batch, 1 / batch.n_targets, gradients)
    scratch = at_work.resources.scratch
    assert scratch.high_water == scratch.capacity
    at_work.close()
    return Result(total / batch.n_targets, adapter.state(gradients))


def check(given: Case, method: str = "mesp", **plan: Any) -> None:
    assert_close(ours(given, method, **plan), truth(given), BOUND)


@pytest.mark.parametrize(
    ("method", "plan"),
    [("mesp", {}), ("mesp", {"chunk": 5}), ("mesp", {"keep": {"gate": 2, "up": 1}}), ("mebp", {})],
    ids=str,
)
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_autograds(all_twins: dict[str, Twins], name: str, method: str, plan: dict[str, Any]) -> None:
    check(case(all_twins[name]), method, **plan)


@pytest.mark.parametrize("name", ["llama", "qwen2", "phi3", "gemma3"])
@pytest.mark.parametrize("feedforward", [(), ("q_proj", "qkv_proj", "gate_up_proj", "o_proj", "up_proj")], ids=str)
def test_all_projections_by_output_and_input(
    all_twins: dict[str, Twins], name: str, feedforward: tuple[str, ...]
) -> None:
    given = case(all_twins[name], ("all",), feedforward)
    expected = truth(given)
    for plan in ({}, {"chunk": 16, "keep": {"gate": 2, "mlp_out": 1}}):
        assert_close(ours(given, **plan), expected, BOUND)


@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_mebp_is_mesp(all_twins: dict[str, Twins], compute: str) -> None:
    given = case(all_twins["llama"])
    assert_equal(*(ours(given, method, compute=compute) for method in ("mesp", "mebp")))


@pytest.mark.parametrize("method", METHODS.names)
def test_every_method_takes_what_was_counted(all_twins: dict[str, Twins], method: str) -> None:
    for targets in (USUAL, ("q", "o", "gate")):
        given = case(all_twins["qwen2"], targets)
        found = ours(given, method, compute="bf16")
        assert all(np.isfinite(values).all() for values in found.grads.values())


def logits(model: Any, adapter: Adapter | None, tokens: list[int]) -> np.ndarray:
    decoder = Decoder(model, adapter, len(tokens), compute="fp32")
    found = np.concatenate([decoder.forward(part, every=True) for part in (tokens[:9], tokens[9:])])
    decoder.close()
    return found


@pytest.mark.parametrize("name", ["llama", "qwen2", "phi3", "lfm2"])
def test_peft_opens_ours_and_we_open_pefts(all_twins: dict[str, Twins], name: str, tmp_path: Path) -> None:
    given, tokens = case(all_twins[name]), draw((12,), 101)[0]
    peft.FORMAT.save(given.adapter, tmp_path / "ours")
    opened = PeftModel.from_pretrained(given.twins.reference, tmp_path / "ours").eval()
    with torch.no_grad():
        expected = opened(input_ids=torch.tensor([tokens])).logits[0].numpy()
    opened.save_pretrained(tmp_path / "theirs")
    opened.unload()
    for folder in ("ours", "theirs"):
        loaded = formats.load(given.twins.model, tmp_path / folder)
        found = logits(given.twins.model, loaded, tokens)
        np.testing.assert_allclose(found, expected, atol=2e-4 * np.abs(expected).max())
        assert loaded.form == given.adapter.form
        for part, values in loaded.state().items():
            np.testing.assert_array_equal(values, given.adapter.state()[part])


def test_an_adapter_of_some_layers_goes_to_peft_and_back(all_twins: dict[str, Twins], tmp_path: Path) -> None:
    twins = all_twins["llama"]
    form = Form(IA3Kind(), ("v", "down"), {(0, "v_proj"): None, (1, "down_proj"): None})
    peft.FORMAT.save(Adapter(twins.model, form), tmp_path)
    entries = json.loads((tmp_path / peft.CONFIG_FILE).read_text())
    assert entries["feedforward_modules"] == ["model.layers.0.mlp.down_proj"]
    opened = PeftModel.from_pretrained(twins.reference, tmp_path)
    found = {_public(name) for name, _ in opened.named_parameters() if "ia3" in name}
    opened.unload()
    loaded = formats.load(twins.model, tmp_path)
    assert loaded.shapes().keys() == found
    assert len(found) == 2


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"feedforward_modules": ".*down_proj"}, "feedforward_modules '.*down_proj'; it must be a list"),
        ({"feedforward_modules": []}, r"down_proj.ia3_l has shape \(1, 160\), not \(96, 1\)"),
        ({"fan_in_fan_out": True}, "does not support for IA3: fan_in_fan_out = True"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"peft_type": "LORA"}, "has rank None"),
        ({"target_modules": ["q_proj", "down_proj"]}, "is missing"),
    ],
)
def test_what_we_cannot_read_is_refused(
    all_twins: dict[str, Twins], tmp_path: Path, change: dict[str, Any], complaint: str
) -> None:
    given = case(all_twins["llama"])
    peft.FORMAT.save(given.adapter, tmp_path)
    file = tmp_path / peft.CONFIG_FILE
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(FeatherbackError, match=complaint):
        formats.load(given.twins.model, tmp_path)


@pytest.mark.parametrize("name", ["llama", "phi3"])
def test_merged_it_computes_the_same(all_twins: dict[str, Twins], name: str, tmp_path: Path) -> None:
    given, tokens = case(all_twins[name], ("all",)), draw((12,), 101)[0]
    MergedGGUF(given.adapter, TensorType.F32).write(tmp_path / "merged.gguf")
    expected = logits(given.twins.model, given.adapter, tokens)
    found = logits(models.load(tmp_path / "merged.gguf"), None, tokens)
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())


def test_a_bias_is_not_merged(all_twins: dict[str, Twins]) -> None:
    given = case(all_twins["qwen2"])
    with pytest.raises(FeatherbackError, match="scales the bias of k_proj, and merging does not change biases"):
        MergedGGUF(given.adapter)
    MergedGGUF(case(all_twins["qwen2"], ("o", "down")).adapter)


@pytest.mark.parametrize("name", ["gguf", "mlx"])
def test_formats_of_pairs_refuse_it(all_twins: dict[str, Twins], name: str) -> None:
    with pytest.raises(FeatherbackError, match=f"(?i){name} cannot hold IA3; export the adapter with --to merged"):
        pairs_of(case(all_twins["llama"]).adapter, name)


def test_defaults_are_pefts_for_llama(all_twins: dict[str, Twins]) -> None:
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_IA3_FEEDFORWARD_MODULES_MAPPING as FEEDFORWARD
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_IA3_TARGET_MODULES_MAPPING as TARGETS

    adapter = Adapter(all_twins["llama"].model, Form.of(adapter="ia3"))
    assert list(adapter.targets) == TARGETS["llama"]
    assert list(IA3Kind().feedforward) == FEEDFORWARD["llama"]
    assert Adapter(all_twins["phi3"].model, Form.of(adapter="ia3")).targets == ("qkv_proj", "down_proj")


def _undivided(patch: pytest.MonkeyPatch) -> None:
    """Fault: dl is computed from y instead of u."""

    def product_backward(self: ScaledOutput, ctx: Any, u: Any, dy: Any, du: Any) -> None:
        ctx.ops.scale_columns(u, self.l, u)
        ctx.ops.column_dots(dy, u, self.dl)
        ctx.ops.scale_columns(dy, self.l, du)

    patch.setattr(ScaledOutput, "product_backward", product_backward)


def _unweighed(patch: pytest.MonkeyPatch) -> None:
    """Fault: dx as if outputs were not scaled."""

    def product_backward(self: ScaledOutput, ctx: Any, u: Any, dy: Any, du: Any) -> None:
        ctx.ops.column_dots(dy, u, self.dl)
        ctx.ops.scale_columns(dy, None, du)

    patch.setattr(ScaledOutput, "product_backward", product_backward)


def _bias_unscaled(patch: pytest.MonkeyPatch) -> None:
    """Fault: u without the bias."""
    product = Projection.product
    patch.setattr(Projection, "product", lambda p, *rest, **more: product(p._replace(bias=None), *rest, **more))


def _input_as_it_was(patch: pytest.MonkeyPatch) -> None:
    def change_backward(self: ScaledInput, ctx: Any, x: Any, d: Any, dx: Any, *, accumulate: bool) -> None:
        ctx.ops.column_dots(d, x, self.dl)
        ctx.ops.scale_columns(d, None, dx, accumulate=accumulate)

    patch.setattr(ScaledInput, "change_backward", change_backward)


@pytest.mark.parametrize("plant", [_undivided, _unweighed, _bias_unscaled, _input_as_it_was])
def test_a_planted_fault_is_found(
    all_twins: dict[str, Twins], monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    given = case(all_twins["qwen2"])
    check(given)
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check(given)
