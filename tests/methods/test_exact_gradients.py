"""Every exact method in fp32 against autograd of transformers + PEFT, tensor by tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.methods.conftest import Twins
from tests.methods.support import Labels, Result, assert_close, ours
from tests.support.families import COMPOSITIONS, TYPICAL
from tests.support.oracle import ALL_TARGETS, random_adapter, reference

BOUND = 1e-4  # relative, of each tensor's norm

LENGTHS = [(1, 2), (2,), (7,), (33,), (257,)]
EXACT = ("mesp", "mebp")


def draw(lengths: Sequence[int], vocabulary: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocabulary, n).tolist() for n in lengths]


def check(
    twins: Twins,
    method: str,
    sequences: list[list[int]],
    labels: Labels | None = None,
    rank: int = 4,
    targets: Sequence[str] | None = None,
    **plan: Any,
) -> None:
    check_all(twins, [(method, plan)], sequences, labels, rank, targets)


def check_all(
    twins: Twins,
    ways: Sequence[tuple[str, dict[str, Any]]],
    sequences: list[list[int]],
    labels: Labels | None = None,
    rank: int = 4,
    targets: Sequence[str] | None = None,
) -> None:
    """Compare each method, with its plan, to the one truth."""
    state = random_adapter(twins.reference, rank, targets, seed=1)
    for name in state:
        if ".lora_B." in name:
            state[name] *= np.float32(rank / 4)  # alpha / rank times B: as strong at every rank
    truth = reference(twins.reference, state, sequences, labels)
    for method, plan in ways:
        found = ours(twins.model, state, sequences, labels, method=method, mlp_tile=256, vocab_tile=48, **plan)
        assert_close(found, Result(truth.loss, truth.grads), BOUND)


def test_every_family(twins: Twins) -> None:
    """Packed sequences with unsupervised tokens, by each method, whole and in chunks."""
    sequences = draw((19, 3, 1, 40, 30), twins.model.config.vocab_size)
    labels = [row.copy() for row in sequences]
    labels[0][:12] = [-100] * 12
    labels[1] = [-100] * 3
    labels[4][5::2] = [-100] * len(labels[4][5::2])
    check_all(twins, [("mesp", {}), ("mebp", {}), ("mesp", {"chunk": 32})], sequences, labels)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("name", TYPICAL)
def test_all_lengths(all_twins: dict[str, Twins], name: str, lengths: tuple[int, ...]) -> None:
    twins = all_twins[name]
    check_all(twins, [("mesp", {}), ("mebp", {})], draw(lengths, twins.model.config.vocab_size))


@pytest.mark.parametrize(("chunk", "lengths"), [(1, (6, 1, 4)), (5, (33,)), (64, (5, 1, 80, 17))], ids=str)
@pytest.mark.parametrize("name", COMPOSITIONS)
def test_in_chunks(all_twins: dict[str, Twins], name: str, chunk: int, lengths: tuple[int, ...]) -> None:
    twins = all_twins[name]
    check(twins, "mesp", draw(lengths, twins.model.config.vocab_size), chunk=chunk)


@pytest.mark.parametrize(
    "targets",
    [(target,) for target in ALL_TARGETS]
    + [("q_proj", "v_proj"), ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")]
    + [("k_proj", "down_proj"), ("o_proj", "up_proj")],
    ids="+".join,
)
@pytest.mark.parametrize("method", EXACT)
def test_subsets_of_targets(all_twins: dict[str, Twins], targets: tuple[str, ...], method: str) -> None:
    for name in ("llama", "qwen2"):
        check(all_twins[name], method, draw((21,), 101), targets=targets)


@pytest.mark.parametrize(
    "targets", [("qkv_proj",), ("gate_up_proj",), ("qkv_proj", "gate_up_proj"), ("o_proj", "down_proj")], ids="+".join
)
@pytest.mark.parametrize(
    ("method", "plan"),
    [("mesp", {}), ("mesp", {"keep_h": True}), ("mesp", {"chunk": 5}), ("mebp", {})],
    ids=["mesp", "kept h", "chunks", "mebp"],
)
def test_fused_targets(
    all_twins: dict[str, Twins], targets: tuple[str, ...], method: str, plan: dict[str, Any]
) -> None:
    for name in ("phi3", "phi3-window"):
        check(all_twins[name], method, draw((21, 6), 101), targets=targets, **plan)


@pytest.mark.parametrize("rank", [1, 2, 3, 8, 17, 32])
def test_ranks(all_twins: dict[str, Twins], rank: int) -> None:
    check(all_twins["qwen2"], "mesp", draw((21, 4), 101), rank=rank)


def test_gradients_accumulate(all_twins: dict[str, Twins]) -> None:
    """Two batches weighted by their tokens have the gradients of one batch that contains both."""
    twins = all_twins["llama"]
    sequences = draw((9, 20), 101)
    state = random_adapter(twins.reference, 4)
    both = ours(twins.model, state, sequences)
    parts = [ours(twins.model, state, [row]) for row in sequences]
    weights = [(len(row) - 1) / 27 for row in sequences]
    summed = {name: sum(np.float32(w) * part.grads[name] for w, part in zip(weights, parts)) for name in both.grads}
    loss = sum(w * part.loss for w, part in zip(weights, parts))
    assert_close(both, Result(loss, summed), 1e-5)
