"""An adapter kind that is defined here only trains, is planned for, decodes and merges.

y = v (W (l x) + bias): l (in,) and v (out,) are trained. It changes inputs and outputs and adds nothing
to the product.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from featherback import methods
from featherback.data.batch import Batch
from featherback.engine.formats.types import TensorType
from featherback.engine.host.paged import PagedArray
from featherback.exports import formats
from featherback.exports.merging import Merge
from featherback.infer.decoder import Decoder
from featherback.methods.memory.plan import Plan
from featherback.models.adapter import Adapter
from featherback.models.form import Form
from featherback.models.streams import floats_of
from featherback.nn.adapters import KINDS
from featherback.nn.adapters.base import AtProjection, Kind, Part
from tests.methods.conftest import Twins
from tests.methods.support import Result, assert_close
from tests.methods.test_exact_gradients import BOUND, draw
from tests.support.oracle import _loss


@dataclass(slots=True)
class Scaled(AtProjection):
    """l (in,), v (out,), and the arrays that accumulate their gradients."""

    l: Any  # noqa: E741
    v: Any
    dl: Any = None
    dv: Any = None
    needs_output: ClassVar[bool] = True  # type: ignore[misc]
    changes_input: ClassVar[bool] = True  # type: ignore[misc]

    def outputs(self, first: int, last: int) -> Scaled:
        return Scaled(self.l, self.v[first:last], self.dl, self.dv if self.dv is None else self.dv[first:last])

    def inputs(self, first: int, last: int) -> ScaledInputs:
        return ScaledInputs(self.l[first:last], self.v, self.dl if self.dl is None else self.dl[first:last])

    def change(self, ctx: Any, x: Any) -> Any:
        changed = ctx.operands("scaled input", *x.shape)
        ctx.ops.scale_columns(x, self.l, changed)
        return changed

    def change_backward(self, ctx: Any, x: Any, d_changed: Any, dx: Any, *, accumulate: bool) -> None:
        if self.dl is not None:
            ctx.ops.column_dots(d_changed, x, self.dl)
        ctx.ops.scale_columns(d_changed, self.l, dx, accumulate=accumulate)

    def finish(self, ctx: Any, out: Any, bias: Any) -> None:
        ctx.ops.scale_columns(out, self.v, out)

    def collect(self, ctx: Any, dy: Any, y: Any, bias: Any) -> None:
        if self.dv is not None:
            ctx.ops.column_dots(dy, y, self.dv, over=self.v)

    def scale_gradient(self, ctx: Any, dy: Any) -> None:
        ctx.ops.scale_columns(dy, self.v, dy)


class ScaledInputs(Scaled):
    """A tile of inputs: the sum of all is finished by the whole."""

    needs_output = False


@dataclass(frozen=True, kw_only=True)
class Scaling(Kind):
    title: ClassVar[str] = "Scaling"
    needs_output: ClassVar[bool] = True

    def describe(self) -> str:
        return "in and out"

    def options(self) -> dict[str, Any]:
        return {"adapter": "made_up", "alpha": None}

    def parts(self, target: str, shape: tuple[int, ...]) -> dict[str, Part]:
        out, inputs = shape
        return {
            "made_up_l": Part("l", (inputs,), (1, inputs)),
            "made_up_v": Part("v", (out,), (out, 1), by_output=True),
        }

    def initialise(self, values: Any, fixed: Any, key: Any) -> None:
        for each in values.values():
            each[...] = 1

    def attach(self, setup: Any) -> Scaled:
        return Scaled(setup.values["l"], setup.values["v"], setup.gradients.get("l"), setup.gradients.get("v"))

    def change_of(self, before: Any, values: Any, first: int, last: int) -> Any:
        return before * values["l"] * values["v"][first:last, None] - before


def scaling(twins: Twins, targets: tuple[str, ...] = ("all",), seed: int = 3) -> Adapter:
    """Set all values away from 1."""
    adapter, rng = Adapter(twins.model, Form(Scaling(), targets)), np.random.default_rng(seed)
    assert all((values == 1).all() for values in adapter.state().values())
    adapter.load_state({name: rng.uniform(0.5, 1.5, s).astype(np.float32) for name, s in adapter.shapes().items()})
    return adapter


@contextmanager
def hooked(twins: Twins, adapter: Adapter) -> Iterator[dict[str, torch.Tensor]]:
    """Inside, the transformers model computes with the adapter, whose tensors it yields."""
    tensors = {name: torch.from_numpy(values).requires_grad_() for name, values in adapter.state().items()}
    handles = []
    for name in {name.rpartition(".")[0] for name in tensors}:
        module = twins.reference.get_submodule(name)
        before, after = tensors[f"{name}.made_up_l"][0], tensors[f"{name}.made_up_v"][:, 0]
        handles.append(module.register_forward_pre_hook(lambda _, given, by=before: (given[0] * by,)))
        handles.append(module.register_forward_hook(lambda _, given, out, by=after: out * by))
    yield tensors
    for handle in handles:
        handle.remove()


def check(twins: Twins, method: str = "mesp", targets: tuple[str, ...] = ("all",), **plan: Any) -> None:
    adapter, sequences = scaling(twins, targets), draw((5, 1, 33), twins.model.config.vocab_size)
    with hooked(twins, adapter) as tensors:
        loss, _ = _loss(twins.reference, sequences, None, lambda *_: None)
        loss.backward()
    truth = {name: tensor.grad.numpy() for name, tensor in tensors.items() if tensor.grad is not None}
    batch, gradients = Batch.from_sequences(sequences), PagedArray(adapter.parameters.layers, adapter.layer_size)
    chosen = Plan(**{"tokens": batch.n_tokens, "compute": "fp32", "mlp_tile": 64, "vocab_tile": 48, **plan})
    at_work = methods.create(method, twins.model, adapter, chosen)
    total = at_work.gradients(batch, 1 / batch.n_targets, gradients)
    assert at_work.loss(batch) == pytest.approx(total, rel=1e-6)
    scratch = at_work.resources.scratch
    assert scratch.high_water == scratch.capacity  # as its dry run said
    at_work.close()
    assert_close(Result(total / batch.n_targets, adapter.state(gradients)), Result(loss.item(), truth), BOUND)


@pytest.mark.parametrize(
    ("method", "plan"),
    [("mesp", {}), ("mesp", {"chunk": 16}), ("mesp", {"keep": {"gate": 2, "mlp_out": 1}}), ("mebp", {})],
    ids=str,
)
@pytest.mark.parametrize("name", ["llama", "qwen2", "phi3", "gemma2"])
def test_gradients_are_autograds(all_twins: dict[str, Twins], name: str, method: str, plan: dict[str, Any]) -> None:
    check(all_twins[name], method, **plan)


@pytest.mark.parametrize("target", ["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"])
def test_one_target(all_twins: dict[str, Twins], target: str) -> None:
    check(all_twins["qwen2"], targets=(target,))


@pytest.mark.parametrize("method", ["collect", "change_backward", "scale_gradient", "change"])
def test_a_planted_fault_is_found(all_twins: dict[str, Twins], monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    def unscaled(self: Scaled, ctx: Any, *given: Any, **options: Any) -> Any:
        if method == "change_backward":
            ctx.ops.scale_columns(given[1], None, given[2], **options)
        return given[0]

    monkeypatch.setattr(Scaled, method, unscaled)
    with pytest.raises(AssertionError):
        check(all_twins["llama"])


def test_it_decodes_and_merges(all_twins: dict[str, Twins]) -> None:
    twins = all_twins["llama"]
    adapter, (tokens,) = scaling(twins), draw((12,), twins.model.config.vocab_size)
    with hooked(twins, adapter) as tensors, torch.no_grad():
        expected = twins.reference(input_ids=torch.tensor([tokens])).logits[0].numpy()
    decoder = Decoder(twins.model, adapter, 12, compute="fp32")
    found = np.concatenate([decoder.forward(part, every=True) for part in (tokens[:9], tokens[9:])])
    decoder.close()
    np.testing.assert_allclose(found, expected, atol=2e-4 * np.abs(expected).max())

    name = "model.layers.1.mlp.up_proj"
    rows = b"".join(Merge(adapter).chunks((1, "up_proj"), TensorType.F32))
    merged = np.frombuffer(rows, np.float32).reshape(twins.model.blocks[1].projections["up_proj"])
    l, v = (tensors[f"{name}.made_up_{part}"].detach().numpy() for part in "lv")  # noqa: E741
    np.testing.assert_allclose(merged, floats_of(twins.model.layer(1).matrices["up_proj"]) * l * v, rtol=1e-5)


def test_it_says_what_it_is(all_twins: dict[str, Twins]) -> None:
    assert repr(scaling(all_twins["llama"], ("q_proj",))).startswith("Scaling(in and out, on q, ")


def test_it_is_saved_and_loaded(all_twins: dict[str, Twins], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """PEFT does not have the kind, so runs keep it in our own format, without a line for it there."""
    monkeypatch.setitem(sys.modules, "featherback.nn.adapters.made_up", SimpleNamespace(KIND=Scaling))  # type: ignore[arg-type]
    monkeypatch.setattr(KINDS, "names", (*KINDS.names, "made_up"))
    adapter = scaling(all_twins["llama"], ("q_proj", "down_proj"))
    formats.of_run(adapter.form).save(adapter, tmp_path)
    again = formats.load(adapter.model, tmp_path)
    assert again.form == adapter.form
    assert all((again.state()[name] == values).all() for name, values in adapter.state().items())
