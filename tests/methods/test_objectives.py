"""Objectives against autograd of PyTorch in float64 on the logits, whole and in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, log_softmax, logsigmoid

from featherback import methods
from featherback.data.batch import IGNORE, Batch, ExtraTargets, Targets
from featherback.data.prefixes import share_prefixes
from featherback.engine.backend.protocol import Array
from featherback.methods import losses
from featherback.methods.memory.plan import Plan
from featherback.methods.mezo import MeZOOptions
from featherback.methods.whole.head import HeadGradient
from featherback.methods.whole.settings import WholeModelSettings
from featherback.models.adapter import LoRA
from featherback.models.model import Model
from featherback.nn.context import Context
from featherback.nn.objectives import distilled
from featherback.nn.objectives.base import Objective, PerTarget
from featherback.nn.objectives.distilled import Distilled
from featherback.nn.objectives.next_token import NEXT_TOKEN
from featherback.nn.objectives.smoothed import Smoothed
from featherback.nn.softmax import HeadPass
from featherback.optim.rules.sgd import SGD
from tests.methods.conftest import Twins
from tests.methods.support import Result, assert_close, with_plan
from tests.methods.test_exact_gradients import draw
from tests.support.oracle import PEFT_PREFIX, random_adapter, with_adapter

BOUND = 1e-5
HEADS = ("llama", "llama-untied", "gemma2", "granite")
"""Models with tied weights, with many tiles, with capped logits, with divided logits."""

Loss = Callable[[torch.Tensor], torch.Tensor]
"""The loss of logits (T, V)."""


@dataclass(frozen=True, kw_only=True)
class Preference(Objective):
    """DPO of consecutive sequences, chosen and rejected: -log sigmoid(beta (margin - the reference's margin))."""

    whole_batch: ClassVar[bool] = True
    beta: float = 0.3
    reference: tuple[float, ...] = (1.0, -2.0)

    def __call__(self, targets: Targets, logp: PerTarget) -> tuple[float, PerTarget]:
        sums = np.bincount(targets.sequences, logp.first, 2 * len(self.reference))
        d = self.beta * (sums[::2] - sums[1::2] - np.array(self.reference))
        slopes = np.repeat(-self.beta / (1 + np.exp(d)), 2) * np.tile([1, -1], len(d))
        return float(np.logaddexp(0, -d).sum()), PerTarget(slopes[targets.sequences], 0 * logp.further)

    def truth(self, batch: Batch) -> Loss:
        def loss(logits: torch.Tensor) -> torch.Tensor:
            rows, first = log_softmax(logits, -1), batch.targets != IGNORE
            sums = [
                rows[a:b][first[a:b], batch.targets[a:b][first[a:b]]].sum()
                for a, b in zip(batch.cu_seqlens, batch.cu_seqlens[1:])
            ]
            margins = zip(sums[::2], sums[1::2], self.reference)
            return -sum((logsigmoid(self.beta * (a - b - r)) for a, b, r in margins), torch.zeros(()))

        return loss


@dataclass(frozen=True, kw_only=True)
class TwoAnswers(Objective):
    """First against further targets: (sum of log p - twice the further ones' sum)^2 / 100."""

    whole_batch: ClassVar[bool] = True

    def __call__(self, targets: Targets, logp: PerTarget) -> tuple[float, PerTarget]:
        d = logp.first.sum() - 2 * logp.further.sum()  # type: ignore[union-attr]
        return d * d / 100, PerTarget(float(d) / 50, np.full(len(logp.further), -d / 25))

    def truth(self, batch: Batch) -> Loss:
        assert batch.further is not None
        rows, ids, first = batch.further.rows, batch.further.ids, np.flatnonzero(batch.targets != IGNORE)

        def loss(logits: torch.Tensor) -> torch.Tensor:
            logp = log_softmax(logits, -1)
            return (logp[first, batch.targets[first]].sum() - 2 * logp[rows, ids].sum()) ** 2 / 100

        return loss

    def fullest(self, batch: Batch) -> Batch:
        rows = np.arange(batch.n_tokens, dtype=np.int32)
        return replace(batch, further=ExtraTargets(rows, 0 * rows, np.ones(len(rows))))


def distilled_truth(objective: Distilled, batch: Batch) -> Loss:
    """The mixture of next-token loss and T^2 KL(teacher || student), with the tail as one class."""
    further, first = batch.further, np.flatnonzero(batch.targets != IGNORE)
    assert further is not None
    temperature, share = objective.temperature, objective.weight
    whole, known = np.zeros((2, batch.n_tokens, 1030))
    np.add.at(whole, (further.rows, further.ids), further.weights)
    known[further.rows, further.ids] = 1

    def loss(logits: torch.Tensor) -> torch.Tensor:
        t, k = (torch.from_numpy(each[first, : logits.shape[1]]) for each in (whole, known))
        hard = cross_entropy(logits[first], torch.from_numpy(batch.targets[first]).long(), reduction="sum")
        logp = log_softmax(logits[first] / temperature, -1)
        tail, others = 1 - t.sum(-1), ((1 - k) * logp.exp()).sum(-1)
        soft = (torch.xlogy(t, t) - t * logp).sum() + (torch.xlogy(tail, tail) - tail * others.log()).sum()
        return (1 - share) * hard + share * temperature**2 * soft

    return loss


def smoothed_truth(share: float, batch: Batch) -> Loss:
    weights = torch.ones(batch.n_tokens) if batch.weights is None else torch.from_numpy(batch.weights)

    def loss(logits: torch.Tensor) -> torch.Tensor:
        targets = torch.from_numpy(batch.targets).long()
        return (weights * cross_entropy(logits, targets, label_smoothing=share, reduction="none")).sum()

    return loss


def a_batch(vocabulary: int, seed: int = 0) -> Batch:
    """Return four sequences with some unsupervised tokens."""
    sequences = draw((9, 12, 2, 16), vocabulary, seed)
    labels = [row.copy() for row in sequences]
    labels[1][:4], labels[3][7:9] = [IGNORE] * 4, [IGNORE] * 2
    return Batch.from_sequences(sequences, labels)


def with_further(batch: Batch, vocabulary: int, count: int = 1) -> Batch:
    """Return the same with up to `count` further targets in every second supervised row, and with weights."""
    rng = np.random.default_rng(5)
    rows, ids = [], []
    for row in np.flatnonzero(batch.targets != IGNORE)[::2]:
        more = sorted(set(rng.integers(0, vocabulary, count).tolist()) - {int(batch.targets[row])})
        rows += [row] * len(more)
        ids += more
    shares = rng.uniform(0.05, 0.2, len(rows))
    further = ExtraTargets(np.array(rows, np.int32), np.array(ids, np.int32), shares)
    return replace(batch, weights=rng.uniform(0.1, 0.3, batch.n_tokens), further=further)


def taught(batch: Batch, vocabulary: int, count: int = 5) -> Batch:
    """Return the same with a teacher's likely tokens in every supervised row. In every third, the target is one."""
    rng = np.random.default_rng(6)
    rows, ids, shares = [], [], []
    for number, row in enumerate(np.flatnonzero(batch.targets != IGNORE)):
        likely = rng.choice(vocabulary, count, replace=False)
        if number % 3 == 0 and batch.targets[row] not in likely:
            likely[number % count] = batch.targets[row]
        rows += [row] * count
        ids += likely.tolist()
        shares += (rng.dirichlet(np.ones(count + 1))[:count]).tolist()
    further = ExtraTargets(np.array(rows, np.int32), np.array(ids, np.int32), np.array(shares))
    return replace(batch, further=further)


def cases(batch: Batch, vocabulary: int) -> Iterator[tuple[str, Objective, Batch, Loss]]:
    smoothed, weighed = Smoothed(label_smoothing=0.2), replace(batch, weights=np.linspace(0, 2, batch.n_tokens))
    yield "smoothed", smoothed, batch, smoothed_truth(0.2, batch)
    yield "smoothed, weights", smoothed, weighed, smoothed_truth(0.2, weighed)
    yield "next token, weights", NEXT_TOKEN, weighed, smoothed_truth(0.0, weighed)
    yield "preference", Preference(), batch, Preference().truth(batch)
    two = with_further(batch, vocabulary)
    yield "two answers", TwoAnswers(), two, TwoAnswers().truth(two)
    likely = taught(batch, vocabulary)
    for name, (share, temperature) in {
        "teacher": (0.6, 1.0),
        "teacher, T 2": (0.6, 2.0),
        "teacher only": (1.0, 0.7),
    }.items():
        distilled = Distilled(weight=share, temperature=temperature, top_k=5)
        yield name, distilled, likely, distilled_truth(distilled, likely)


class Collected:
    """A sink of the head's own weights."""

    def __init__(self, model: Model, source: Any) -> None:
        self._model, self._source = model, source
        self.weight = np.full((model.head.weight.rows, model.head.weight.cols), np.nan, np.float32)

    def head(self, ctx: Context, done: HeadPass) -> None:
        for rows, part in HeadGradient(ctx, self._model.head, self._source, done).tiles(7):
            self.weight[rows] = part

    def vector(self, ctx: Context, name: str, gradient: Array) -> None:
        self.norm = gradient.copy()


def of_head(
    model: Model,
    objective: Objective,
    batch: Batch,
    chunk: int | None = None,
    whole: bool = False,
    compute: str = "fp32",
) -> tuple[float, float, dict[str, Array]]:
    """Return loss of a forward pass, loss of a backward pass, and gradients, of a model without blocks."""
    plan = replace(Plan.default(model.config, tokens=batch.n_tokens, compute=compute), vocab_tile=48, chunk=chunk)
    trained = None if whole else LoRA(model, 2, 16.0, "all")
    settings = WholeModelSettings(SGD()) if whole else None
    method = methods.create("mesp", model, trained, plan, whole=settings, objective=objective)
    sink = Collected(model, method.resources.weights) if whole else None
    with method._begin(batch) as sweep:
        sweep.embed()
        forward = losses.loss(sweep, objective)
        backward = losses.token_gradient(sweep, objective, 0.5, sink)
        found = {"x": np.empty((batch.n_tokens, model.config.hidden_size), np.float32)}
        for span in sweep.spans:
            with sweep.rows(span, save=False) as (_, x), method.resources.backend.host(x) as values:
                found["x"][span.own] = values
    if sink is not None:
        found |= {"W": sink.weight, "g": sink.norm}
    method.close()
    return forward, backward, found


def truth_of_head(twins: Twins, batch: Batch, loss: Loss) -> tuple[float, dict[str, Array]]:
    """Return the same in float64."""
    head, model = twins.model.head, twins.reference
    embed, w = (m.weight.detach().double().numpy() for m in (model.model.embed_tokens, model.lm_head))
    leaves = {
        "x": torch.tensor(embed[batch.tokens] * twins.model.embedding_scale, requires_grad=True),
        "g": torch.tensor(head.norm.astype(np.float64) * head.divisor, requires_grad=True),
        "W": torch.tensor(w, requires_grad=True),
    }
    x = leaves["x"]
    hidden = x / torch.sqrt((x * x).mean(-1, keepdim=True) + head.eps) * leaves["g"] / head.divisor
    logits = hidden @ leaves["W"].T
    value = loss(head.softcap * torch.tanh(logits / head.softcap) if head.softcap else logits)
    (0.5 * value).backward()
    return value.item(), {name: leaf.grad.numpy() for name, leaf in leaves.items() if leaf.grad is not None}


def errors_of_head(
    twins: Twins, name: str, chunk: int | None = None, whole: bool = False, compute: str = "fp32"
) -> dict[str, float]:
    """Return the relative error of each value and gradient of a case."""
    vocabulary = twins.model.config.vocab_size
    all_cases = {case: rest for case, *rest in cases(a_batch(vocabulary), vocabulary)}
    objective, batch, loss = all_cases[name]
    forward, backward, found = of_head(twins.model, objective, batch, chunk, whole, compute)
    value, truth = truth_of_head(twins, batch, loss)
    apart = {n: np.linalg.norm(found[n] - truth[n]) / np.linalg.norm(truth[n]) for n in found}
    return apart | {"forward": abs(forward / value - 1), "backward": abs(backward / value - 1)}


CASES = ("smoothed", "smoothed, weights", "next token, weights", "preference", "two answers", "teacher")
SOFT = ("teacher, T 2", "teacher only")
"""Two softmaxes, which adapters can have."""


@pytest.mark.parametrize("name", [*CASES, *SOFT])
@pytest.mark.parametrize("head", HEADS)
def test_gradients_of_the_head(all_twins: dict[str, Twins], head: str, name: str) -> None:
    for chunk, whole in ((None, False), (6, False), *([] if name in SOFT else [(None, True)])):
        apart = errors_of_head(all_twins[head], name, chunk, whole)
        assert max(apart.values()) < BOUND, (chunk, whole, apart)


@pytest.mark.parametrize(("compute", "bound"), [("int16", 1e-3), ("bf16", 2e-2)])
@pytest.mark.parametrize("name", ["smoothed, weights", "teacher", "teacher, T 2"])
def test_in_other_computes(all_twins: dict[str, Twins], name: str, compute: str, bound: float) -> None:
    for head in ("llama-untied", "gemma2"):
        for whole in (False, *([] if name in SOFT else [True])):
            apart = errors_of_head(all_twins[head], name, None, whole, compute)
            assert max(apart.values()) < bound, (head, whole, apart)


def fault(monkeypatch: pytest.MonkeyPatch, plant: str) -> None:
    """Faults that the check above must find."""
    if plant == "derivatives swapped":
        times = PerTarget.times
        monkeypatch.setattr(PerTarget, "times", lambda self, f: replace(times(self, f), first=f * self.first[::-1]))
    elif plant == "a chunk is not scaled":
        placed = losses.placed

        def skipping(ctx: Context, values: Any, n: int) -> Array:
            return placed(ctx, np.ones(n) if (values < -0.01).all() else values, n)

        monkeypatch.setattr(losses, "placed", skipping)
    elif plant == "further targets are left out":
        monkeypatch.setattr(
            PerTarget, "split_by_span", lambda self, spans: (replace(p, further=0 * p.further) for p in spans)
        )
    elif plant == "the factor T^2 is dropped":
        call = Distilled.__call__

        def without(self: Distilled, targets: Targets, logp: PerTarget) -> tuple[float, PerTarget]:
            loss, slopes = call(self, targets, logp)
            return loss, replace(slopes, further=slopes.further / self.temperature**2)

        monkeypatch.setattr(Distilled, "__call__", without)
    elif plant == "the tail is ignored":
        tails = distilled._tails
        monkeypatch.setattr(distilled, "_tails", lambda t, logp: (0 * tails(t, logp)[0], tails(t, logp)[1]))
    elif plant == "rows are shifted by one":
        supervised = Batch.supervised

        def shifted(self: Batch, own: slice | None = None) -> Targets:
            found = supervised(self, own)
            return replace(
                found, further_weights=np.roll(found.further_weights, 5), further_ids=np.roll(found.further_ids, 5)
            )

        monkeypatch.setattr(Batch, "supervised", shifted)
    elif plant == "the teacher's tokens stay in the sums of exponentials":
        monkeypatch.setattr("featherback.engine.backend.cpu.CPUOperations.clear", staticmethod(lambda *_: None))
    else:
        assert plant == "no cap on the evenly spread part"
        slopes = "featherback.engine.backend.cpu.CPUOperations.capped_slopes"
        monkeypatch.setattr(slopes, staticmethod(lambda x, cap: x.fill(1)))


@pytest.mark.parametrize(
    ("plant", "name", "chunk"),
    [
        ("derivatives swapped", "preference", None),
        ("the factor T^2 is dropped", "teacher, T 2", None),
        ("the tail is ignored", "teacher", 6),
        ("rows are shifted by one", "teacher, T 2", None),
        ("the teacher's tokens stay in the sums of exponentials", "teacher", None),
        ("a chunk is not scaled", "preference", 6),
        ("further targets are left out", "two answers", 6),
        ("no cap on the evenly spread part", "smoothed", None),
    ],
)
def test_a_planted_fault_is_found(
    all_twins: dict[str, Twins], monkeypatch: pytest.MonkeyPatch, plant: str, name: str, chunk: int | None
) -> None:
    fault(monkeypatch, plant)
    assert errors_of_head(all_twins["gemma2"], name, chunk)["x"] > 1e-3


def truth_of_model(twins: Twins, state: dict[str, Array], batch: Batch, loss: Loss) -> Result:
    """Through transformers and PEFT, each sequence separately; the loss in float64 on the logits."""
    peft = with_adapter(twins.reference, state, 16)
    logits = [
        peft(input_ids=torch.from_numpy(batch.tokens[a:b])[None].long(), use_cache=False).logits[0]
        for a, b in zip(batch.cu_seqlens, batch.cu_seqlens[1:])
    ]
    mean = loss(torch.cat(logits).double()) / batch.n_targets
    mean.backward()
    grads = {n.removeprefix(PEFT_PREFIX).replace(".default.", "."): p.grad for n, p in peft.named_parameters()}
    found = {name: grad.numpy().copy() for name, grad in grads.items() if grad is not None}
    peft.unload()
    return Result(mean.item(), found)


def check_model(
    twins: Twins, objective: Objective, batch: Batch, loss: Loss, method: str = "mesp", **plan: Any
) -> None:
    state = random_adapter(twins.reference, 4, seed=1)
    chosen = Plan.default(twins.model.config, tokens=batch.n_tokens, compute="fp32")
    chosen = replace(chosen, mlp_tile=256, vocab_tile=48, **plan)
    found = with_plan(twins.model, state, batch, chosen, method, objective=objective)
    assert_close(found, truth_of_model(twins, state, batch, loss), 5 * BOUND)


@pytest.mark.parametrize(("method", "chunk"), [("mesp", None), ("mesp", 8), ("mebp", None)])
@pytest.mark.parametrize("name", ["llama-untied", "gemma2"])
def test_smoothing_through_a_model(all_twins: dict[str, Twins], name: str, method: str, chunk: int | None) -> None:
    twins = all_twins[name]
    batch = a_batch(twins.model.config.vocab_size)
    check_model(twins, Smoothed(label_smoothing=0.2), batch, smoothed_truth(0.2, batch), method, chunk=chunk)


@pytest.mark.parametrize("chunk", [None, 8])
def test_preferences_of_answers_that_share_their_prompt(all_twins: dict[str, Twins], chunk: int | None) -> None:
    """Sharing prompts changes the order of sequences; an objective can still see the sequence of each row."""
    twins = all_twins["llama"]
    one, other, *answers = draw((11, 9, 5, 8, 4, 6), 101, seed=3)
    sequences = [other + answers[0], one + answers[1], one + answers[2], other + answers[3]]
    labels = [[IGNORE] * size + row[size:] for row, size in zip(sequences, (9, 11, 11, 9))]
    batch = Batch.from_sequences(sequences, labels)
    assert share_prefixes(batch).n_tokens == batch.n_tokens - 18
    objective = Preference(reference=(13.0, 8.0))
    check_model(twins, objective, batch, objective.truth(batch), chunk=chunk)


def test_further_targets_follow_their_rows() -> None:
    """Rows that move if a prefix is shared."""
    one, other, *answers = draw((11, 9, 5, 8, 4, 6), 101, seed=3)
    sequences = [other + answers[0], one + answers[1], one + answers[2], other + answers[3]]
    labels = [[IGNORE] * size + row[size:] for row, size in zip(sequences, (9, 11, 11, 9))]
    batch = with_further(Batch.from_sequences(sequences, labels), 101, 2)
    shared = share_prefixes(batch)
    assert shared.prefix is not None

    def told(batch: Batch) -> set[tuple[int, ...]]:
        """Return (sequence, position, target, further target) of each row."""
        targets = batch.supervised()
        rows = targets.further_rows
        places = (targets.sequences[rows], batch.positions[targets.rows[rows]], targets.ids[rows], targets.further_ids)
        return set(zip(*(place.tolist() for place in places)))

    assert told(shared) == told(batch)
    parts = [shared.supervised(slice(a, min(a + 7, shared.n_tokens))) for a in range(0, shared.n_tokens, 7)]
    whole = shared.supervised()
    for name in ("ids", "weights", "further_ids", "further_weights", "sequences"):
        np.testing.assert_array_equal(np.concatenate([getattr(p, name) for p in parts]), getattr(whole, name))


def test_random_directions_follow_the_objective(all_twins: dict[str, Twins]) -> None:
    """MeZO's loss is the objective's; the held-out loss is the next-token loss."""
    twins = all_twins["gemma2"]
    batch, state = a_batch(twins.model.config.vocab_size), random_adapter(twins.reference, 4, seed=1)
    truth = truth_of_model(twins, state, batch, smoothed_truth(0.2, batch))
    found = [
        with_plan(
            twins.model, state, batch, Plan.default(twins.model.config, tokens=batch.n_tokens, compute="fp32"), "mezo",
            options=MeZOOptions(epsilon=1e-3), objective=objective,
        )
        for objective in (Smoothed(label_smoothing=0.2), NEXT_TOKEN)
    ]  # fmt: skip
    assert found[0].loss == pytest.approx(truth.loss, rel=1e-3)
    assert abs(found[1].loss / truth.loss - 1) > 1e-2
    z = {name: grad / np.float64(np.linalg.norm(grad)) for name, grad in found[0].grads.items()}
    other = {name: grad / np.float64(np.linalg.norm(grad)) for name, grad in found[1].grads.items()}
    assert all(abs(abs(np.vdot(z[name], other[name])) - 1) < 1e-3 for name in z)  # one direction, another slope
    size = sum(np.vdot(g, g) for g in found[0].grads.values()) ** 0.5
    along = sum(np.vdot(found[0].grads[name], truth.grads[name]) for name in z) / size
    count = sum(g.size for g in z.values())
    assert along == pytest.approx(size / count, rel=0.05)  # g z, |z|^2 ~ count; the slope along z is g . truth
