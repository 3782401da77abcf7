"""Settings that must not change a bit of the gradients: method, kept intermediates and their storage, threads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from featherback import methods
from featherback.data.batch import Batch
from featherback.engine import kernels
from featherback.methods.memory.plan import Plan
from tests.methods.conftest import Twins
from tests.methods.support import adapter_of, assert_equal, ours
from tests.methods.test_exact_gradients import draw
from tests.support.families import COMPOSITIONS
from tests.support.oracle import State, random_adapter

LENGTHS = [(1, 2), (7,), (40, 3, 21), (257,)]
FEW = 4  # so few tokens use the decoding products, which do not round weights to bf16; MeBP stores them in bf16


@pytest.fixture(params=COMPOSITIONS)
def twins(all_twins: dict[str, Twins], request: pytest.FixtureRequest) -> Twins:
    """Yield each of these models in turn."""
    return all_twins[request.param]


def adapter(twins: Twins, *targets: str) -> State:
    return random_adapter(twins.reference, 4, targets or None, seed=2)


@pytest.mark.parametrize("compute", ["fp32", "int16", "bf16"])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_mebp_is_mesp(twins: Twins, lengths: tuple[int, ...], compute: str) -> None:
    sequences = draw(lengths, twins.model.config.vocab_size)
    for targets in ((), ("q_proj", "down_proj"), ("v_proj", "o_proj", "gate_proj")):
        state = adapter(twins, *targets)
        found = [
            ours(twins.model, state, sequences, compute=compute, method=method, mlp_tile=256, vocab_tile=48)
            for method in ("mesp", "mebp")
        ]
        if compute == "bf16" and sum(lengths) <= FEW:
            assert found[0].loss == pytest.approx(found[1].loss, rel=2**-8)
        else:
            assert_equal(*found)


@pytest.mark.parametrize("compute", ["fp32", "bf16"])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_keeping_h(twins: Twins, lengths: tuple[int, ...], compute: str) -> None:
    sequences = draw(lengths, twins.model.config.vocab_size)
    kept, recomputed = (
        ours(twins.model, adapter(twins), sequences, compute=compute, keep_h=keep) for keep in (True, False)
    )
    assert_equal(kept, recomputed)


@pytest.mark.parametrize("method", ["mesp", "mebp"])
@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_checkpoints_in_a_file(twins: Twins, tmp_path: Path, compute: str, method: str) -> None:
    sequences = draw((33, 8), twins.model.config.vocab_size)
    in_ram, in_file = (
        ours(twins.model, adapter(twins), sequences, compute=compute, method=method, folder=tmp_path, checkpoints=place)
        for place in ("ram", "file")
    )
    assert_equal(in_ram, in_file)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("method", ["mesp", "mebp", "mezo"])
@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_threads(twins: Twins, compute: str, method: str) -> None:
    sequences = draw((70, 31), twins.model.config.vocab_size)
    before, found = kernels.threads(), []
    try:
        for threads in (1, 2, 3):
            kernels.set_threads(threads)
            found.append(ours(twins.model, adapter(twins), sequences, compute=compute, method=method))
    finally:
        kernels.set_threads(before)
    assert_equal(found[0], found[1])
    assert_equal(found[0], found[2])


@pytest.mark.parametrize("chunk", [None, 16])
@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_evaluation_is_the_training_loss(twins: Twins, compute: str, chunk: int | None) -> None:
    sequences = draw((40, 3, 21), twins.model.config.vocab_size)
    state, batch = adapter(twins), Batch.from_sequences(sequences)
    trained = ours(twins.model, state, sequences, compute=compute, chunk=chunk).loss
    plan = replace(Plan.default(twins.model.config, tokens=batch.n_tokens, compute=compute), chunk=chunk)
    at_work = methods.create("mesp", twins.model, adapter_of(twins.model, state), plan)
    assert at_work.loss(batch) / batch.n_targets == trained


def test_the_same_call_twice(twins: Twins) -> None:
    sequences = draw((70, 31), twins.model.config.vocab_size)
    assert_equal(*(ours(twins.model, adapter(twins), sequences, compute="bf16") for _ in range(2)))
