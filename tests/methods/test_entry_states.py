"""Hidden states kept on disk: the same bits as computing them again, in every packing, layout and method."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from featherback import methods
from featherback.data.batch import Batch, FileSequences
from featherback.data.packing import Batching, batches
from featherback.data.token_file import TokenFile, TokenFileWriter
from featherback.engine.host.token_rows import TokenRows, file_bytes
from featherback.methods import sweep
from featherback.methods.base import Draw, Method
from featherback.methods.entry import LEAST, EntryStates
from featherback.methods.memory.plan import Plan
from featherback.models.model import Model
from featherback.nn.block import Block
from tests.methods.conftest import Twins
from tests.methods.support import Result, adapter_of, assert_equal
from tests.methods.test_exact_gradients import draw
from tests.methods.test_layers import layers_of, state_of
from tests.support.tiers import some

LENGTHS = (9, 33, 8, 20, 57, 12, 40, 31)
FULL = 96  # tokens in a batch


@pytest.fixture
def tokens(tmp_path: Path, all_twins: dict[str, Twins]) -> TokenFile:
    return write(tmp_path / "some.tokens", all_twins["smollm3"].model)


def write(path: Path, model: Model, seed: int = 0, prefix: int = 0) -> TokenFile:
    """Write sequences of several lengths, with a common prefix of which nothing is supervised."""
    common, *rows = draw((prefix, *LENGTHS), model.config.vocab_size, seed)
    with TokenFileWriter(path) as writer:
        for row in rows:
            writer.add(common + row, [False] * prefix + [True] * len(row))
    return TokenFile(path)


def rows_of(tokens: TokenFile, model: Model, path: Path, key: str = "k") -> TokenRows:
    lengths = (some for _, some in tokens.all_lengths())
    return TokenRows(path, key, len(tokens), tokens.n_tokens, model.config.hidden_size, lengths)


class Trial:
    """A method with an adapter on the last layers, with or without states, and every batch of some epochs."""

    def __init__(self, twins: Twins, method: str = "mesp", choice: str = "last:2", dropout: float = 0.0, **plan: Any):
        self.model, state = twins.model, state_of(twins, layers_of(twins, choice))
        self.adapter = adapter_of(twins.model, state)
        self.adapter.dropout = dropout
        made = {"tokens": FULL + 60, "compute": "fp32", **plan}
        self.plan = replace(Plan.default(self.model.config, tokens=made.pop("tokens")), **made)
        self.method: Method = methods.create(method, self.model, self.adapter, self.plan)
        self.notes: list[str] = []

    def keep(self, tokens: TokenFile, file: TokenRows) -> EntryStates:
        self.method.entry_states = EntryStates({tokens.checksum: file}, self.notes.append)
        return self.method.entry_states

    def gradients(self, batch: Batch, step: int = 0) -> Result:
        gathered = self.adapter.parameters.zeros_like(self.adapter.layer_size)
        loss = self.method.gradients(batch, 1 / batch.n_targets, gathered, Draw(step=step))
        return Result(loss, self.adapter.state(gathered))

    def epochs(self, tokens: TokenFile, numbers: Sequence[int] = (0, 1, 2)) -> list[Result]:
        return [self.gradients(batch) for epoch in numbers for batch in packed(tokens, epoch)]


def packed(tokens: TokenFile, epoch: int) -> Iterator[Batch]:
    return batches(tokens, Batching(FULL, FULL), seed=3, epoch=epoch)


def compare(found: list[Result], expected: list[Result]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        assert_equal(one, other)


def check(twins: Twins, tokens: TokenFile, path: Path, method: str = "mesp", **options: Any) -> EntryStates:
    plain, kept = Trial(twins, method, **options), Trial(twins, method, **options)
    states = kept.keep(tokens, rows_of(tokens, twins.model, path))
    compare(kept.epochs(tokens), plain.epochs(tokens))
    for batch in packed(tokens, 7):
        assert kept.method.loss(batch) == plain.method.loss(batch)
    assert not kept.notes
    return states


FAMILIES = ("llama", "qwen2-late-window", "gemma3", "lfm2", "phi3", "qwen3", "granite", "olmo2")


@pytest.mark.parametrize("compute", ["fp32", "bf16", "int16"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_row_does_not_depend_on_its_batch(all_twins: dict[str, Twins], name: str, compute: str) -> None:
    """The states are kept by sequence, whatever batch they were computed in."""
    model = all_twins[name].model
    sequences = draw((LEAST, 9, 31, 32, 33, 70, 17), model.config.vocab_size)
    alone = [states(model, [sequence], compute)[0] for sequence in sequences]
    order = [3, 6, 0, 5, 2, 1, 4]
    for plan in ({}, {"chunk": 32}, {"chunk": 64}, {"chunk": 128}):
        together = states(model, [sequences[i] for i in order], compute, **plan)
        for i, found in zip(order, together):
            assert np.array_equal(found, alone[i]), (len(sequences[i]), plan)


def states(model: Model, sequences: list[list[int]], compute: str, **plan: Any) -> list[np.ndarray]:
    """Return the residual stream of each sequence after all blocks."""
    batch = Batch.from_sequences(sequences)
    chosen = replace(Plan.default(model.config, tokens=batch.n_tokens, compute=compute), **plan)
    method, found = methods.create("mesp", model, None, chosen), []
    with method._begin(batch) as passing:
        for index in passing.enter():
            passing.forward(index)
        for span in passing.spans:
            with passing.rows(span, save=False) as (_, x):
                found.append(np.array(x))
    method.close()
    return [np.concatenate(found)[a:b] for a, b in zip(batch.cu_seqlens, batch.cu_seqlens[1:])]


@pytest.mark.parametrize("method", some(["mesp", "mebp", "lcsb", "mezo", "sparse_mezo"], 3))
def test_the_same_bits_with_each_method(
    all_twins: dict[str, Twins], tokens: TokenFile, tmp_path: Path, method: str
) -> None:
    found = check(all_twins["smollm3"], tokens, tmp_path / "rows", method)
    first = sum(1 for _ in packed(tokens, 0))
    assert found.computed == first
    assert found.read > 2 * first


@pytest.mark.parametrize(
    "options",
    [
        {"compute": "bf16"},
        {"chunk": 32},
        {"chunk": 64, "compute": "int16"},
        {"keep": {"m": 2, "gate": 1, "up": 1}},
        {"dropout": 0.2},
        {"choice": "1,3"},
        {"choice": "last:1"},
    ],
    ids=str,
)
def test_the_same_bits_in_each_layout(
    all_twins: dict[str, Twins], tokens: TokenFile, tmp_path: Path, options: dict[str, Any]
) -> None:
    check(all_twins["smollm3"], tokens, tmp_path / "rows", **options)


@pytest.mark.parametrize("plan", [{}, {"chunk": 32}], ids=str)
def test_shared_prefixes(all_twins: dict[str, Twins], tmp_path: Path, plan: dict[str, Any]) -> None:
    """The blocks below pass the plain batch, so that rows do not depend on what shares their prefix."""
    twins = all_twins["smollm3"]
    tokens = write(tmp_path / "shared.tokens", twins.model, prefix=21)
    trial = Trial(twins, **plan)
    trial.keep(tokens, rows_of(tokens, twins.model, tmp_path / "rows"))
    batch = next(each for each in packed(tokens, 0) if each.n_sequences > 1)
    with trial.method._begin(batch) as passing:
        assert passing.batch.n_tokens < batch.n_tokens
    first, again = trial.gradients(batch), trial.gradients(batch)
    assert_equal(first, again)
    other = Trial(twins, **plan)
    other.keep(tokens, rows_of(tokens, twins.model, tmp_path / "others"))
    for each in (*packed(tokens, 1), *packed(tokens, 2)):  # stored in other company
        other.gradients(each)
    assert_equal(other.gradients(batch), first)
    plain = Trial(twins, **plan).gradients(batch)
    for name, values in plain.grads.items():
        np.testing.assert_allclose(first.grads[name], values, rtol=1e-3, atol=1e-5)


def test_few_tokens_are_not_kept(all_twins: dict[str, Twins], tmp_path: Path) -> None:
    """Kernels for a few rows add in another order."""
    twins = all_twins["smollm3"]
    with TokenFileWriter(tmp_path / "t") as writer:
        for row in draw((3, LEAST - 1, 60, LEAST), twins.model.config.vocab_size):
            writer.add(row, [True] * len(row))
    tokens, plain, kept = TokenFile(tmp_path / "t"), Trial(twins), Trial(twins)
    found = kept.keep(tokens, rows_of(tokens, twins.model, tmp_path / "rows"))
    for sequences in ([0], [0], [1], [1], [2, 0], [3, 1], [0], [3]):
        rows = [tokens.seq(i)[0] for i in sequences]
        batch = replace(Batch.from_sequences(rows), source=FileSequences(tokens.checksum, np.array(sequences)))
        assert_equal(kept.gradients(batch), plain.gradients(batch))
    assert (found.computed, found.read) == (2, 1)


def damaged(path: Path, change: Callable[[bytearray], None]) -> None:
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)


def test_damaged_rows_are_computed_again(all_twins: dict[str, Twins], tokens: TokenFile, tmp_path: Path) -> None:
    twins, path = all_twins["smollm3"], tmp_path / "rows"
    expected = Trial(twins).epochs(tokens, (0, 1))
    trial = Trial(twins)
    trial.keep(tokens, rows_of(tokens, twins.model, path))
    trial.epochs(tokens, (0,))

    def flip(content: bytearray) -> None:
        content[-5000] ^= 1

    damaged(path, flip)
    again = Trial(twins)
    found = again.keep(tokens, rows_of(tokens, twins.model, path))
    compare(again.epochs(tokens, (0, 1)), expected)
    assert found.computed == 1
    assert [note.count("is damaged") for note in again.notes] == [1]


def test_a_truncated_file_is_made_anew(all_twins: dict[str, Twins], tokens: TokenFile, tmp_path: Path) -> None:
    twins, path = all_twins["smollm3"], tmp_path / "rows"
    trial = Trial(twins)
    file = rows_of(tokens, twins.model, path)
    trial.keep(tokens, file)
    before = trial.epochs(tokens, (0,))
    assert not file.replaced
    assert path.stat().st_size == file_bytes(len(tokens), tokens.n_tokens, twins.model.config.hidden_size)
    os.truncate(path, path.stat().st_size - 100)
    again = Trial(twins)
    anew = rows_of(tokens, twins.model, path)
    assert anew.replaced
    again.keep(tokens, anew)
    compare(again.epochs(tokens, (0,)), before)


def test_a_full_disk(
    all_twins: dict[str, Twins], tokens: TokenFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is kept from then on, and the batch is computed as if it had never been."""
    twins = all_twins["smollm3"]
    expected, trial = Trial(twins).epochs(tokens), Trial(twins)
    trial.keep(tokens, rows_of(tokens, twins.model, tmp_path / "rows"))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(TokenRows, "save", full)
    compare(trial.epochs(tokens), expected)
    assert trial.notes == [
        f"note: {tmp_path / 'rows'} cannot be written (No space left on device); from now on all layers run in every "
        "epoch"
    ]


def test_batches_without_a_file_pass_as_before(all_twins: dict[str, Twins], tokens: TokenFile, tmp_path: Path) -> None:
    twins, trial = all_twins["smollm3"], Trial(all_twins["smollm3"])
    found = trial.keep(tokens, rows_of(tokens, twins.model, tmp_path / "rows"))
    batch = replace(next(packed(tokens, 0)), source=None)
    assert_equal(trial.gradients(batch), Trial(twins).gradients(batch))
    assert found.computed == found.read == 0


def test_no_block_below_runs_again(
    all_twins: dict[str, Twins], tokens: TokenFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    twins, trial = all_twins["smollm3"], Trial(all_twins["smollm3"])
    trial.keep(tokens, rows_of(tokens, twins.model, tmp_path / "rows"))
    trial.epochs(tokens, (0,))
    ran, forward, count = [], Block.forward, len(twins.model.blocks)
    monkeypatch.setattr(Block, "forward", lambda block, *rest: ran.append(block) or forward(block, *rest))
    trial.gradients(next(packed(tokens, 1)))
    assert len(ran) == 2 < count


# Planted faults.


def test_rows_of_other_sequences_are_found(
    all_twins: dict[str, Twins], tokens: TokenFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: after the order has changed, a batch reads the rows of the sequences that had its places before."""
    own = TokenRows.places

    def in_order(rows: TokenRows, sequences: Any, lengths: Any) -> Any:
        return own(rows, range(len(sequences)), lengths)

    monkeypatch.setattr(TokenRows, "places", in_order)
    with pytest.raises(AssertionError):
        check(all_twins["smollm3"], tokens, tmp_path / "rows")


def test_states_of_other_tokens_are_found(all_twins: dict[str, Twins], tokens: TokenFile, tmp_path: Path) -> None:
    """Fault: the key does not name the tokens."""
    twins = all_twins["smollm3"]
    other = write(tmp_path / "other.tokens", twins.model, seed=9)
    check(twins, tokens, tmp_path / "rows")
    with pytest.raises(AssertionError):
        check(twins, other, tmp_path / "rows")  # the same key
    stale = rows_of(other, twins.model, tmp_path / "rows", key="of the other tokens")
    assert stale.replaced


def test_checksums_that_are_not_compared_are_found(
    all_twins: dict[str, Twins], tokens: TokenFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: a row counts as intact if it was written at all."""
    monkeypatch.setattr(TokenRows, "intact", lambda rows, places: all(rows._sums(int(place), 1)[0] for place in places))
    with pytest.raises(AssertionError):
        test_damaged_rows_are_computed_again(all_twins, tokens, tmp_path)


def test_bf16_rows_would_lose_bits(
    all_twins: dict[str, Twins], tokens: TokenFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: rows are rounded to the operands' type. The residual stream is float32 in every compute."""
    load = TokenRows.load

    def rounded(rows: TokenRows, places: Any, out: np.ndarray) -> None:
        load(rows, places, out)
        out.view(np.uint32)[...] &= 0xFFFF0000

    monkeypatch.setattr(TokenRows, "load", rounded)
    with pytest.raises(AssertionError):
        check(all_twins["smollm3"], tokens, tmp_path / "rows", compute="bf16")


def test_prefixes_shared_below_are_found(
    all_twins: dict[str, Twins], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: the blocks below pass a batch whose prefixes are shared, so rows depend on the batch."""
    provided = sweep._sweep

    def sharing(*values: Any) -> Any:
        *rest, batch = values[:7]
        return provided(*rest, sweep.share_prefixes(batch) if len(values) == 7 else batch, *values[7:])

    monkeypatch.setattr(sweep, "_sweep", sharing)
    with pytest.raises((AssertionError, IndexError, ValueError)):
        test_shared_prefixes(all_twins, tmp_path, {})


def test_the_peak_is_the_plans(all_twins: dict[str, Twins], tokens: TokenFile, tmp_path: Path) -> None:
    """Computing, storing and reading states takes no memory that the dry run did not count."""
    for plan in ({}, {"chunk": 32}):
        trial = Trial(all_twins["smollm3"], **plan)
        trial.keep(tokens, rows_of(tokens, trial.model, tmp_path / f"rows{len(plan)}"))
        trial.epochs(tokens)
        scratch = trial.method.resources.scratch
        assert scratch.high_water <= scratch.capacity  # type: ignore[attr-defined]
