"""Causal grouped-query attention over packed sequences, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.engine.kernels import oracles
from tests.engine.kernels.native import REFERENCE, VECTOR_SETS, kernel
from tests.support.bf16 import narrow, widen
from tests.support.check import ROUNDOFF, Bound, Output, check_gradient, check_op, compare, filling
from tests.support.guard import Guarded
from tests.support.sweep import sweep

from featherback.engine import kernels
from featherback.engine.backend.cpu import CPUOperations
from featherback.engine.backend.protocol import BOTH_WAYS

Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    queries: tuple[int, ...]  # lengths of the sequences
    heads: int = 2
    kv_heads: int = 1
    head_dim: int = 8
    keys: tuple[int, ...] | None = None  # None: as many as queries
    window: int = 0
    sharpness: float = 1.0  # multiplies q
    softcap: float = 0
    prefix: tuple[int, ...] = ()  # the sequence that each continues, or -1
    sinks: tuple[float, ...] = ()  # for each head

    def __str__(self) -> str:
        text = f"{'+'.join(map(str, self.queries))}-{self.heads}:{self.kv_heads}-d{self.head_dim}"
        text += f"-keys{'+'.join(map(str, self.keys))}" if self.keys else ""
        text += f"-window{self.window}" if self.window else ""
        text += f"-x{self.sharpness:g}" if self.sharpness != 1 else ""
        text += f"-prefix{'+'.join(map(str, self.prefix))}" if self.prefix else ""
        text += f"-sinks{'+'.join(f'{sink:g}' for sink in self.sinks)}" if self.sinks else ""
        return text + (f"-cap{self.softcap:g}" if self.softcap else "")

    @property
    def cu_q(self) -> NDArray[np.int32]:
        return np.cumsum([0, *self.queries], dtype=np.int32)

    @property
    def cu_k(self) -> NDArray[np.int32]:
        return np.cumsum([0, *(self.keys or self.queries)], dtype=np.int32)

    @property
    def scale(self) -> float:
        return float(np.float32(self.head_dim**-0.5))

    @property
    def logits(self) -> NDArray[np.float32] | None:
        """The sinks (H,)."""
        return np.array(self.sinks, np.float32) if self.sinks else None

    @property
    def forward(self) -> dict[str, Any]:
        """The arguments of `attention` other than arrays of rows."""
        return self.fixed | {"sinks": self.logits}

    @property
    def fixed(self) -> dict[str, Any]:
        """The arguments of both kernels other than arrays of rows."""
        cu: dict[str, Any] = {"cu_q": self.cu_q, "cu_k": self.cu_k} if self.keys else {"cu_q": self.cu_q}
        if self.prefix:
            cu["prefix"] = np.array(self.prefix, np.int32)
        return {
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "scale": self.scale,
            "window": self.window,
            "softcap": self.softcap,
            **cu,
        }

    @property
    def mask(self) -> NDArray[np.bool_]:
        return oracles.visible(self.cu_q, self.cu_k, self.window, self.prefix)

    @property
    def vanishing(self) -> tuple[str, ...]:
        """Where every query sees one key only, the softmax is constant: no gradient reaches q and k."""
        return ("dq", "dk") if self.mask.sum(1).max() == 1 and not self.sinks else ()

    @property
    def oracle(self) -> Any:
        return oracles.attention(self.mask, self.heads, self.kv_heads, self.scale, self.softcap, self.logits)

    def inputs(self, rng: np.random.Generator, dtype: str) -> dict[str, Array]:
        rows, cols = self.mask.shape
        q = self.sharpness * rng.standard_normal((rows, self.heads * self.head_dim))
        k, v = rng.standard_normal((2, cols, self.kv_heads * self.head_dim))
        return {"q": narrow(q, dtype), "k": narrow(k, dtype), "v": narrow(v, dtype)}

    def bounds(self, inputs: dict[str, Array], dout: Array) -> dict[str, Bound]:
        wide = {name: widen(array) for name, array in inputs.items()}
        sizes = oracles.attention_magnitudes(
            **wide,
            dout=dout,
            mask=self.mask,
            heads=self.heads,
            kv_heads=self.kv_heads,
            scale=self.scale,
            softcap=self.softcap,
            sinks=self.logits,
        )
        terms = max(self.head_dim, *self.mask.shape)
        return {name: Bound("attention", size, terms) for name, size in sizes.items()}


CASES = [
    Case((1,), head_dim=24),
    Case((2,), 3, 1, 64),
    Case((7,), 4, 2, 80),
    Case((33,), 2, 2, 128),
    Case((257,), 3, 3, 64),
    Case((1, 5, 1, 20, 3), 6, 2, 24),
    Case((1, 70, 33, 5), 4, 2, 24, window=BOTH_WAYS),
    Case((5, 40), 2, 1, 16, keys=(33, 90), window=BOTH_WAYS, softcap=50),
    Case((64, 1, 63), 4, 1, 8),
    Case((0, 5, 0, 3), 2, 1, 8),
    Case((130, 127), 2, 1, 80),
    Case((48, 49, 96), 2, 1, 16),
    Case((33, 7), 2, 1, 8, window=1),
    Case((70, 2), 4, 2, 24, window=4),
    Case((200,), 2, 1, 64, window=100),
    Case((129, 65), 2, 1, 8, window=64),
    Case((1,), 4, 2, 64, keys=(40,)),
    Case((3, 1, 1), 4, 2, 24, keys=(10, 1, 130)),
    Case((50, 33), 2, 1, 80, keys=(150, 33)),
    Case((5, 60), 2, 2, 8, keys=(90, 200), window=17),
    Case((65, 1), 2, 1, 64, sharpness=20),
    Case((40, 33), 2, 1, 16, keys=(72, 130), window=300),
    Case((64,), 4, 2, 24, keys=(192,), window=40),
    Case((32, 5), 2, 2, 8, keys=(96, 70), window=1),
    Case((70, 1, 33), 4, 2, 24, softcap=2),
    Case((65,), 2, 1, 64, sharpness=20, softcap=5),
    Case((33, 66), 2, 1, 16, keys=(100, 130), window=40, softcap=50),
    Case((40, 7, 33, 1), 4, 2, 24, prefix=(-1, 0, 0, 0)),
    Case((130, 65, 3), 2, 1, 8, prefix=(-1, 0, 0), softcap=3),
    Case((20, 9, 5, 70, 40, 33), 2, 2, 16, prefix=(-1, 0, 0, -1, -1, 4), window=73),
    Case((0, 0, 12, 40), 4, 2, 8, keys=(70, 33, 40, 40), prefix=(-1, 0, 0, 0)),
    Case((9, 31), 2, 1, 8, keys=(64, 31), prefix=(-1, 0)),
    Case((1, 2), head_dim=24, sinks=(0.5, -1)),
    Case((257, 5), 3, 1, 64, sinks=(0, 3, -3)),
    Case((200, 33), 4, 2, 24, window=20, sinks=(1, -2, 4, 0)),
    Case((40, 33), 2, 1, 16, keys=(72, 130), window=4, sharpness=20, sinks=(60, -60), softcap=50),
    Case((130, 65, 3), 2, 1, 8, prefix=(-1, 0, 0), sinks=(2, -1)),
    Case((70,), 2, 2, 8, sinks=(200, -200)),
]
cases = pytest.mark.parametrize("case", CASES, ids=str)
dtypes = pytest.mark.parametrize("dtype", ["f32", "bf16"])
isas = pytest.mark.parametrize("isa", VECTOR_SETS)


def forward(case: Case, inputs: dict[str, Array]) -> tuple[Array, Array]:
    """Return out and lse of the reference kernels, float64."""
    out, lse = np.full(inputs["q"].shape, np.nan), np.full((case.heads, len(inputs["q"])), np.nan)
    kernel(REFERENCE, "attention", **case.forward)(**inputs, out=out, lse=lse)
    return out, lse


def outputs(case: Case, inputs: dict[str, Array], dtype: str) -> dict[str, Output]:
    """Return the outputs of the backward pass, including its scratch."""
    shapes = {"dq": "q", "dk": "k", "dv": "v"}
    rows = (case.heads, len(inputs["q"]))
    return {name: Output(inputs[of].shape, dtype) for name, of in shapes.items()} | {"delta": Output(rows, dtype)}


def select(bounds: dict[str, Bound], *names: str) -> dict[str, Bound]:
    return {name: bounds[name] for name in names}


@sweep(cases)
def test_reference(rng: np.random.Generator, case: Case) -> None:
    inputs = case.inputs(rng, "f64")
    dout = rng.standard_normal(inputs["q"].shape)
    bounds = case.bounds(inputs, dout)
    results, gradients = oracles.autograd(case.oracle, inputs, {"out": dout})
    check_op(
        kernel(REFERENCE, "attention", **case.forward),
        filling(lambda: results),
        inputs,
        {"out": Output(dout.shape, "f64"), "lse": Output((case.heads, len(dout)), "f64")},
        select(bounds, "out", "lse"),
        compute="f64",
    )
    out, lse = forward(case, inputs)
    check_op(
        kernel(REFERENCE, "attention_backward", **case.fixed),
        filling(lambda: {f"d{name}": gradient for name, gradient in gradients.items()}),
        {"dout": dout, **inputs, "out": out, "lse": lse},
        outputs(case, inputs, "f64"),
        select(bounds, "dq", "dk", "dv"),
        compute="f64",
        vanishing=case.vanishing,
    )


@pytest.mark.parametrize(
    "case",
    [
        Case((7,), 4, 2, 6),
        Case((1, 5, 2), 2, 1, 8),
        Case((9,), 3, 1, 4, window=3),
        Case((4, 1, 6), 2, 1, 4, window=BOTH_WAYS),
        Case((3, 1), 2, 2, 4, (8, 5), 6),
        Case((7, 3), 2, 1, 6, softcap=1.5),
        Case((4, 2, 5), 2, 1, 6, prefix=(-1, 0, 0)),
        Case((7, 3), 2, 1, 6, window=4, sinks=(0.5, -1)),
    ],
    ids=str,
)
def test_reference_by_finite_differences(rng: np.random.Generator, case: Case) -> None:
    inputs = case.inputs(rng, "f64")
    dout = rng.standard_normal(inputs["q"].shape)
    out, lse = forward(case, inputs)
    gradients = {f"d{name}": np.full_like(array, np.nan) for name, array in inputs.items()}
    kernel(REFERENCE, "attention_backward", **case.fixed)(
        dout=dout, **inputs, out=out, lse=lse, delta=np.full_like(lse, np.nan), **gradients
    )
    check_gradient(
        lambda **arrays: float(np.sum(dout * forward(case, arrays)[0])),
        inputs,
        {name[1:]: gradient for name, gradient in gradients.items()},
        rng,
    )


@isas
@sweep(dtypes, cases)
def test_attention(rng: np.random.Generator, isa: str, case: Case, dtype: str) -> None:
    inputs = case.inputs(rng, dtype)
    rows = len(inputs["q"])
    bounds = case.bounds(inputs, np.zeros(inputs["q"].shape))
    check_op(
        kernel(isa, "attention", **case.forward),
        kernel(REFERENCE, "attention", **case.forward),
        inputs,
        {"out": Output(inputs["q"].shape, dtype), "lse": Output((case.heads, rows))},
        select(bounds, "out", "lse"),
    )


@isas
@sweep(dtypes, cases)
def test_attention_backward(rng: np.random.Generator, isa: str, case: Case, dtype: str) -> None:
    inputs = case.inputs(rng, dtype)
    dout = rng.standard_normal(inputs["q"].shape).astype(np.float32)
    out, lse = forward(case, inputs)
    bounds = select(case.bounds(inputs, widen(dout)), "dq", "dk", "dv")
    if dtype == "bf16":
        bounds["dq"] = replace(bounds["dq"], approximated=most_left(case, inputs, dout, out))
    check_op(
        kernel(isa, "attention_backward", **case.fixed),
        kernel(REFERENCE, "attention_backward", **case.fixed),
        {"dout": dout, **inputs, "out": narrow(out, dtype), "lse": lse.astype(np.float32)},
        outputs(case, inputs, "f32"),
        bounds,
        vanishing=case.vanishing,
    )


BLOCK = 4  # keys; docs/derivations/attention.md


def error_of_delta(case: Case, dout: Array, out: Array) -> Array:
    """Return what dout . out lacks if `out` is rounded to bf16, (heads, rows)."""
    lost = out - widen(narrow(out, "bf16"))
    return np.asarray((dout * lost).reshape(len(dout), case.heads, -1).sum(-1).T)


def most_left(case: Case, inputs: dict[str, Array], dout: Array, out: Array) -> Array:
    """Return the most that is left in dq of the rounding of `out`: a key replaced by the first of its block.

    Blocks begin anywhere here.
    """
    wide = {name: widen(array) for name, array in inputs.items()}
    terms = np.abs(dout * out).reshape(len(dout), case.heads, case.head_dim)
    rounding = case.head_dim * ROUNDOFF["f32"] * terms.sum(-1).T  # of the sum that delta is
    error = np.abs(error_of_delta(case, dout, out)) + rounding  # (heads, rows)
    p = oracles.autograd(case.oracle, wide, {"out": dout})[0]["p"].reshape(case.heads, *case.mask.shape)
    keys = wide["k"].reshape(len(wide["k"]), case.kv_heads, -1)
    spread = np.max([np.abs(keys - np.roll(keys, shift, 0)) for shift in range(BLOCK)], 0)  # (keys, kv_heads, head_dim)
    found = np.empty((len(dout), case.heads, case.head_dim))
    for head in range(case.heads):
        found[:, head] = case.scale * error[head][:, None] * (p[head] @ spread[:, head * case.kv_heads // case.heads])
    return found.reshape(len(dout), -1)


@isas
@pytest.mark.parametrize(
    "case",
    [
        Case((64, 9), 4, 2, 24),
        Case((300,), 2, 1, 64),
        Case((257, 5), 3, 1, 64, sinks=(0, 3, -3)),
        Case((200, 33), 4, 2, 24, window=100),
        Case((130, 65, 3), 2, 1, 8, prefix=(-1, 0, 0)),
    ],
    ids=str,
)
def test_the_rounding_of_out_is_no_error_that_keys_enlarge(rng: np.random.Generator, isa: str, case: Case) -> None:
    """All keys have a large common part, and out is in bf16. With dout . out as delta, each case would fail."""
    inputs = case.inputs(rng, "f32")
    inputs["k"] += 10 * rng.standard_normal(inputs["k"].shape[1]).astype(np.float32)
    dout = rng.standard_normal(inputs["q"].shape).astype(np.float32)
    wide = {name: widen(array) for name, array in inputs.items()}
    results, truth = oracles.autograd(case.oracle, wide, {"out": widen(dout)})
    shapes = {"dq": inputs["q"], "dk": inputs["k"], "dv": inputs["v"], "delta": np.empty((case.heads, len(dout)))}
    found = {name: np.full(like.shape, np.nan, np.float32) for name, like in shapes.items()}
    kernel(isa, "attention_backward", **case.fixed)(
        dout=dout, **inputs, out=narrow(results["out"], "bf16"), lse=results["lse"].astype(np.float32), **found
    )
    lost = error_of_delta(case, dout, results["out"])  # (heads, rows)
    weights = results["p"].reshape(case.heads, *case.mask.shape) * lost[:, :, None]
    for head in range(case.heads):
        own = slice(head * case.head_dim, (head + 1) * case.head_dim)
        first = head * case.kv_heads // case.heads * case.head_dim
        plain = case.scale * weights[head] @ wide["k"][:, first : first + case.head_dim]  # what would be wrong with dq
        wrong = np.linalg.norm(found["dq"][:, own] - truth["q"][:, own])
        assert wrong < np.linalg.norm(plain) / 8
    shared = weights.reshape(case.kv_heads, -1, *case.mask.shape).transpose(0, 1, 3, 2)
    queries = wide["q"].reshape(len(dout), case.kv_heads, -1, case.head_dim).transpose(1, 2, 0, 3)
    plain = case.scale * (shared @ queries).sum(1).transpose(1, 0, 2).reshape(truth["k"].shape)  # and with dk
    assert np.linalg.norm(found["dk"] - truth["k"]) < np.linalg.norm(plain) / 32
    exact = (dout * results["out"]).reshape(len(dout), case.heads, -1).sum(-1).T
    assert np.linalg.norm(found["delta"] - exact) < np.linalg.norm(lost) / 32


@pytest.mark.parametrize("isa", kernels.available())
@sweep(cases)
def test_kept_probabilities(rng: np.random.Generator, isa: str, case: Case) -> None:
    """p is written where a query sees a key, and read only there; keeping it changes no bit of a gradient."""
    inputs = case.inputs(rng, "f32")
    rows, cols = case.mask.shape
    lse, dout = np.full((case.heads, rows), np.nan, np.float32), rng.standard_normal(inputs["q"].shape)
    out, p = np.full(dout.shape, np.nan, np.float32), Guarded((case.heads * rows, cols), np.float32)
    kernel(isa, "attention", **case.forward)(**inputs, out=out, lse=lse, p=p.view)
    assert p.surroundings_intact()

    wide = {name: widen(array) for name, array in inputs.items()}
    visible = np.tile(case.mask, (case.heads, 1))
    bound = case.bounds(inputs, dout)["p"]
    compare(
        "p",
        p.view[visible],
        oracles.autograd(case.oracle, wide, {"out": dout})[0]["p"][visible],
        Bound(bound.tolerance, bound.magnitude[visible], bound.terms),
        stored="f32",
        compute="f32",
    )
    p.view[~visible] = np.nan
    forward_state = {"dout": dout.astype(np.float32), **inputs, "out": out, "lse": lse}
    gradients = []
    for kept in (None, p.view):
        shapes = {"dq": inputs["q"], "dk": inputs["k"], "dv": inputs["v"], "delta": lse}
        arrays = {name: np.full(like.shape, np.nan, np.float32) for name, like in shapes.items()}
        kernel(isa, "attention_backward", **case.fixed)(**forward_state, **arrays, p=kept)
        gradients.append(arrays)
    for name, recomputed in gradients[0].items():
        if isa == REFERENCE:  # which rounds p to float32 in between
            np.testing.assert_allclose(gradients[1][name], recomputed, rtol=1e-4, atol=1e-4, err_msg=name)
        else:
            np.testing.assert_array_equal(gradients[1][name], recomputed, err_msg=name)


@isas
def test_default_scale_and_no_lse(rng: np.random.Generator, isa: str) -> None:
    """The default scale is head_dim^-0.5; inference needs no log-sum-exp."""
    case = Case((33, 4), 4, 2, 24)
    inputs = case.inputs(rng, "f32")
    check_op(
        kernel(isa, "attention", **{**case.fixed, "scale": None, "lse": None}),
        kernel(REFERENCE, "attention", **case.fixed, lse=None),
        inputs,
        {"out": Output(inputs["q"].shape)},
        select(case.bounds(inputs, np.zeros(inputs["q"].shape)), "out"),
    )


FEW = [
    Case((1,), head_dim=24),
    Case((2,), 3, 1, 64),
    Case((3, 0, 1), 4, 2, 80),
    Case((1,), 4, 2, 64, keys=(40,)),
    Case((3, 1), 4, 2, 24, keys=(10, 130)),
    Case((4,), 2, 1, 128, keys=(300,), window=17),
    Case((1,), 2, 1, 8, keys=(65,), sharpness=20),
    Case((4,), 2, 1, 24, keys=(60,), window=90),
    Case((2, 2), 4, 2, 64, keys=(2, 70), window=9, sharpness=5, softcap=3),
    Case((3, 1), 4, 2, 24, keys=(10, 130), window=30, sinks=(2, 0, -2, 1)),
    Case((1,), 2, 1, 8, keys=(65,), sinks=(90, -90)),
]


@isas
@sweep(dtypes, pytest.mark.parametrize("case", FEW, ids=str))
def test_few_queries_of_a_decoder(rng: np.random.Generator, isa: str, case: Case, dtype: str) -> None:
    """Without a log-sum-exp, a few queries use a separate code path."""
    inputs = case.inputs(rng, dtype)
    check_op(
        kernel(isa, "attention", **case.forward, lse=None),
        kernel(REFERENCE, "attention", **case.forward, lse=None),
        inputs,
        {"out": Output(inputs["q"].shape, dtype)},
        select(case.bounds(inputs, np.zeros(inputs["q"].shape)), "out"),
    )


def chunks(lengths: tuple[int, ...], size: int) -> list[tuple[int, int]]:
    """[begin, end) of the steps in which one sequence's queries go."""
    (length,) = lengths
    return [(begin, min(length, begin + size)) for begin in range(0, length, size)]


@pytest.mark.parametrize("isa", kernels.available())
@dtypes
@pytest.mark.parametrize("size", [32, 64, 41])
@pytest.mark.parametrize(
    "case",
    [
        Case((150,), 4, 2, 24),
        Case((150,), 2, 2, 24, window=20),
        Case((150,), 4, 2, 8, window=70, softcap=2),
        Case((150,), 2, 1, 16, window=400),
        Case((150,), 2, 1, 16, window=30, sinks=(1, -1)),
    ],
    ids=str,
)
def test_a_sequence_in_chunks(rng: np.random.Generator, isa: str, case: Case, size: int, dtype: str) -> None:
    """Queries of each chunk with all keys so far give the whole sequence's results, with dk and dv summed over chunks.

    In chunks of whole tiles, every row of queries is computed as in the whole: out, lse and dq agree to the last bit.
    dk and dv are the same terms in sums of another order.
    """
    inputs = case.inputs(rng, dtype)
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    length, width = len(q), q.shape[1]
    dout = rng.standard_normal((length, width)).astype(np.float32)
    fixed = {name: value for name, value in case.fixed.items() if name != "cu_q"}

    def run(steps: list[tuple[int, int]]) -> dict[str, Array]:
        out = np.full(q.shape, 0 if dtype == "bf16" else np.nan, q.dtype)
        lse, delta = np.full((2, case.heads, length), np.nan, np.float32)
        dq = np.full(q.shape, np.nan, np.float32)
        dk, dv = np.zeros((2, *k.shape), np.float32)
        for begin, end in steps:
            cu = {"cu_q": np.array([0, end - begin], np.int32), "cu_k": np.array([0, end], np.int32)}
            rows, heads = slice(begin, end), np.s_[:, begin:end]
            forward = {"q": q[rows], "k": k[:end], "v": v[:end], "out": out[rows], "lse": lse[heads]}
            kernel(isa, "attention", **fixed, **cu, sinks=case.logits)(**forward)
            kernel(isa, "attention_backward", **fixed, **cu, accumulate=True)(
                dout=dout[rows], **forward, delta=delta[heads], dq=dq[rows], dk=dk[:end], dv=dv[:end]
            )
        return {"out": out, "lse": lse, "dq": dq, "dk": dk, "dv": dv}

    whole, parts = run([(0, length)]), run(chunks(case.queries, size))
    bounds = case.bounds(inputs, widen(dout))
    for name, bound in bounds.items():
        if name == "p":
            continue
        if size % 32 == 0 and name in ("out", "lse", "dq"):
            np.testing.assert_array_equal(parts[name], whole[name], err_msg=name)
        else:
            stored = dtype if name == "out" else "f32"
            compare(name, parts[name], whole[name], bound, stored=stored, compute="f32")


@isas
def test_gradients_are_added_only_if_asked(rng: np.random.Generator, isa: str) -> None:
    case = Case((3, 40), 4, 2, 24, keys=(50, 90), window=20)
    inputs = case.inputs(rng, "f32")
    dout = rng.standard_normal(inputs["q"].shape).astype(np.float32)
    out, lse = forward(case, inputs)
    start = {"dk": rng.standard_normal(inputs["k"].shape), "dv": rng.standard_normal(inputs["v"].shape)}
    bounds = select(case.bounds(inputs, widen(dout)), "dq", "dk", "dv")
    for name, added in start.items():
        bounds[name] = Bound("attention", bounds[name].magnitude + np.abs(added), bounds[name].terms)
    check_op(
        kernel(isa, "attention_backward", **case.fixed, accumulate=True),
        kernel(REFERENCE, "attention_backward", **case.fixed, accumulate=True),
        {"dout": dout, **inputs, "out": narrow(out, "f32"), "lse": lse.astype(np.float32)},
        {name: Output(output.shape, "f32", start.get(name)) for name, output in outputs(case, inputs, "f32").items()},
        bounds,
    )


@sweep(
    pytest.mark.parametrize("dtype", ["f64", "f32"]),
    pytest.mark.parametrize("case", [case for case in CASES if case.sinks], ids=str),
)
def test_gradient_of_sinks(rng: np.random.Generator, case: Case, dtype: str) -> None:
    """What the backward pass computes per row is enough for the gradient of the sinks."""
    inputs = case.inputs(rng, "f64") | {"sinks": np.array(case.sinks)}
    dout = rng.standard_normal(inputs["q"].shape)
    results, gradients = oracles.autograd(case.oracle, inputs, {"out": dout})
    delta = (dout * results["out"]).reshape(len(dout), case.heads, -1).sum(-1).T
    sinks, lse, delta, out = (
        np.array(each, {"f64": np.float64, "f32": np.float32}[dtype])
        for each in (inputs["sinks"], results["lse"], delta, np.full(case.heads, np.nan))
    )
    CPUOperations.sinks_gradient(sinks, lse, delta, out)
    tolerance = 1e-12 if dtype == "f64" else 1e-4
    size = max(1.0, float(np.abs(gradients["sinks"]).max()))
    np.testing.assert_allclose(out, gradients["sinks"], rtol=0, atol=tolerance * size)


@pytest.mark.parametrize("isa", kernels.available())
def test_no_sink_is_one_of_minus_infinity(rng: np.random.Generator, isa: str) -> None:
    """A sink adds nothing else: with an absent one and with one that weighs nothing, all bits are equal."""
    case = Case((40, 3), 2, 1, 16, window=9)
    inputs = case.inputs(rng, "f32")
    found = []
    for sinks in (None, np.full(2, -np.inf, np.float32)):
        for rows in (None, np.full((2, 43), np.nan, np.float32)):
            out = np.full(inputs["q"].shape, np.nan, np.float32)
            kernel(isa, "attention", **case.fixed, sinks=sinks)(**inputs, out=out, lse=rows)
            found.append(out)
    for out in found[2:]:
        np.testing.assert_array_equal(out, found[0])
