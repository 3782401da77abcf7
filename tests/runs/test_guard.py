"""Runs that must stop, and what is kept of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import featherback as fb
from featherback.core.decode import encode
from featherback.data.batch import IGNORE, Batch
from featherback.data.packing import Batching
from featherback.data.token_file import TokenFile, TokenFileWriter
from featherback.engine.formats import fingerprint
from featherback.errors import FeatherbackError
from featherback.infer.decoder import Decoder
from featherback.methods import create
from featherback.methods.memory.plan import Plan
from featherback.runs import guard
from featherback.runs.callback import Callback
from featherback.runs.events import Step
from featherback.runs.run_directory import RunDirectory
from featherback.runs.stream import BatchStream
from tests.runs.conftest import SEQ_LEN, Start, sequences
from tests.support.tiny_models import TINY_LLAMA, write_tiny

OUTSIDE = TINY_LLAMA.vocab_size


def _record(run: Path) -> dict[str, Any]:
    return encode(RunDirectory.open(run).record)  # type: ignore[no-any-return]


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_an_absurd_rate_never_leaves_a_broken_adapter(start: Start, tmp_path: Path, optimizer: str) -> None:
    with pytest.raises(
        FeatherbackError, match=r"not finite at step 1; lower --lr, for example to \S+\. No adapter was saved"
    ):
        start(steps=1, learning_rate=1e300, optimizer=optimizer)
    assert not (tmp_path / "run").exists()
    start(steps=1, learning_rate=1e-3, optimizer=optimizer)


def test_parameters_that_explode_are_thrown_away_with_what_was_saved_of_them(start: Start, tmp_path: Path) -> None:
    """Finite but useless after step 3: the loss of step 4 tells. What step 2 left is good."""
    good = start("good", steps=2, schedule="constant", optimizer="sgd", learning_rate=1e-2)

    original = guard.check_loss

    def planted(loss: float, what: str, step: int, doubtful: int, model: Any, per_token: bool) -> None:
        original(1e6 if step == 4 else loss, what, step, doubtful, model, per_token)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("featherback.runs.guard.check_loss", planted)
        with pytest.raises(FeatherbackError) as raised:
            start("run", steps=6, save_every=1, schedule="constant", optimizer="sgd", learning_rate=1e-2)
    assert str(raised.value) == (
        "Training has stopped: the loss exploded at step 4: 1e+06 nats per token, and random guessing gives 4.6; "
        "lower --lr, for example to 0.0025. The checkpoint and the adapter of step 2 are kept."
    )
    run = tmp_path / "run"
    assert [path.name for path in run.glob("*.fbc")] == ["checkpoint-000002.fbc"]
    kept, wanted = (load_file(path / "adapter_model.safetensors") for path in (run, good.path))
    assert all(np.array_equal(kept[name], wanted[name]) for name in wanted)
    assert _record(run)["failure"]["step"] == 3
    resumed = start("run", steps=3, resume=True, schedule="constant", optimizer="sgd", learning_rate=1e-2)
    assert [line["step"] for line in resumed.metrics()] == [1, 2, 3]


@pytest.mark.parametrize("keep", ["better", "last"])
def test_a_mean_that_was_measured_outlives_the_step_that_is_thrown_away(
    start: Start, tmp_path: Path, keep: str
) -> None:
    original = guard.check_loss

    def planted(loss: float, what: str, step: int, doubtful: int, model: Any, per_token: bool) -> None:
        original(1e6 if (what, step) == ("the loss", 4) else loss, what, step, doubtful, model, per_token)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("featherback.runs.guard.check_loss", planted)
        with pytest.raises(FeatherbackError) as raised:
            start("run", steps=6, save_every=1, eval_seed=9, eval_every=1, learning_rate=1e-3, keep=keep)
    best = {"better": 3, "last": 2}[keep]
    assert f"adapter of step {best}" in str(raised.value)
    assert (tmp_path / "run" / "adapter_model.safetensors").exists()


def test_a_held_out_loss_that_is_not_finite_is_told(start: Start, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("featherback.methods.base.Method.loss", lambda *_, **__: float("nan"))
        with pytest.raises(FeatherbackError, match="the held-out loss is not finite at step 0; lower --lr"):
            start(steps=2, eval_seed=9)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("part", ["blk.1.ffn_up.weight", "output_norm.weight", "blk.0.attn_norm.weight"])
def test_weights_that_are_not_finite_are_told_as_such(start: Start, tmp_path: Path, part: str) -> None:
    path = write_tiny(tmp_path / "broken.gguf")
    info = fb.load(path).store.tensors[part]
    with open(path, "r+b") as file:
        file.seek(info.offset + 8)
        file.write(np.float32("nan").tobytes())
    layer = {"blk.1.ffn_up.weight": "up_proj of layer 1", "output_norm.weight": "the last norm"}
    with pytest.raises(FeatherbackError) as raised:
        start(steps=2, model=str(path))
    assert str(raised.value) == (
        f"{path} is broken: {layer.get(part, 'input_layernorm of layer 0')} holds NaN or infinity."
    )


def _write(path: Path, tokens: list[int], supervised: list[int]) -> TokenFile:
    with TokenFileWriter(path) as writer:
        for _ in range(3):
            writer.add(tokens, supervised)
    return TokenFile(path)


def test_a_mask_of_zeros_is_refused(tmp_path: Path) -> None:
    file = _write(tmp_path / "t", [1, 2, 3], [1, 0, 0])  # nothing predicts the first
    with pytest.raises(FeatherbackError, match="has no supervised token"):
        file.check(OUTSIDE)
    with pytest.raises(FeatherbackError, match="has no supervised token"):
        BatchStream(file, Batching(4), 0).take(1)
    file.n_targets = 3  # a header that lies
    with pytest.raises(FeatherbackError, match="has no supervised token"):
        BatchStream(file, Batching(4), 0).take(1)


@pytest.mark.parametrize("wrong", [OUTSIDE, 2**31 - 1, -1])
def test_prepared_tokens_beyond_the_embedding_are_refused(start: Start, tmp_path: Path, wrong: int) -> None:
    run = start(steps=1)
    _write(run.tokens / "train.tokens", [1, wrong, 3], [1, 1, 1])
    with pytest.raises(FeatherbackError) as raised:
        TokenFile(run.tokens / "train.tokens").check(OUTSIDE)
    assert f"holds the token id {wrong}; the model's token ids are 0 to {OUTSIDE - 1}" in str(raised.value)


@pytest.mark.parametrize("weights", ["resident", "paged", "by_matrix", "streamed"])
def test_no_id_reads_what_lies_behind_the_embedding(tiny_path: Path, weights: Any) -> None:
    model = fb.load(tiny_path)
    plan = Plan(tokens=SEQ_LEN, compute="fp32", weights=weights)
    method = create("mesp", model, None, plan)
    batch = Batch.from_sequences([[1, OUTSIDE, 2]])
    try:
        with pytest.raises(FeatherbackError, match=f"A token id is {OUTSIDE}"):
            method.loss(batch)
    finally:
        method.close()


def test_a_prompt_beyond_the_embedding_is_refused(tiny_path: Path) -> None:
    decoder = Decoder(fb.load(tiny_path), capacity=8)
    for wrong in (OUTSIDE, -1, 2**40):
        with pytest.raises(FeatherbackError, match=f"A token id is {wrong}; the model's token ids are 0 to"):
            decoder.forward([1, wrong])
    assert not decoder.tokens


def test_a_flipped_bit_of_the_tokens_is_found(start: Start) -> None:
    run = start(steps=1)
    path = run.tokens / "train.tokens"
    good = path.read_bytes()
    for at in (64, len(good) // 2, len(good) - 1, 24):
        bad = bytearray(good)
        bad[at] ^= 1
        path.write_bytes(bad)
        with pytest.raises(FeatherbackError, match=r"train\.tokens"):
            TokenFile(path).check(OUTSIDE)
    path.write_bytes(good)
    TokenFile(path).check(OUTSIDE)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "large.gguf", seed=3)


@pytest.mark.parametrize(
    ("weights", "lost"),
    [("resident", "most"), ("paged", "most"), ("by_matrix", "most"), ("streamed", "most"), ("paged", "3 bytes")],
)
def test_a_model_cut_short_under_a_run_is_a_sentence(
    start: Start, large: Path, monkeypatch: pytest.MonkeyPatch, weights: Any, lost: str
) -> None:
    left = 4096 if lost == "most" else large.stat().st_size - 3  # within a page, whose rest reads as zeros

    class Cut(Callback):
        def step(self, event: Step) -> None:
            if event.step == 2:
                os.truncate(large, left)

    def plan(config: Any, model: Any, _: object) -> Plan:
        return Plan(tokens=SEQ_LEN, compute="fp32", weights=weights)

    monkeypatch.setattr("featherback.runs.choose.plan_for", plan)
    with pytest.raises(FeatherbackError, match=r"large\.gguf (was truncated|is shorter than it was)"):
        start("cut", Cut(), model=str(large), steps=4, save_every=1)
    record = _record(large.parent / "cut")
    assert record["status"] == "failed"
    assert (large.parent / "cut" / "checkpoint-000002.fbc").exists()


def test_a_model_is_known_by_its_contents(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "a.gguf")
    known = fingerprint.of_store(fb.load(path).store)
    moved = tmp_path / "b.gguf"
    moved.write_bytes(path.read_bytes())
    assert fingerprint.of_store(fb.load(moved).store) == known
    assert fingerprint.of_store(fb.load(write_tiny(tmp_path / "other.gguf", seed=1)).store) != known
    model = fb.load(path)
    seen = {known}
    for name, info in model.store.tensors.items():  # a flipped bit at the beginning, middle or end of any tensor
        for at in (info.offset, info.offset + info.nbytes // 2, info.offset + info.nbytes - 1):
            content = bytearray(path.read_bytes())
            content[at] ^= 64
            moved.write_bytes(content)
            found = fingerprint.of_store(fb.load(moved).store)
            assert found not in seen, (name, at)
            seen.add(found)


def test_resuming_with_another_model_is_refused(start: Start, tiny_path: Path, tmp_path: Path) -> None:
    run = start(steps=1)
    record = (run.path / "run.json").read_bytes()
    other = write_tiny(tmp_path / "other.gguf", seed=1)
    with pytest.raises(FeatherbackError, match="the run was started with another model"):
        start(steps=2, resume=True, model=str(other))
    assert (run.path / "run.json").read_bytes() == record
    moved = tmp_path / "moved.gguf"
    moved.write_bytes(tiny_path.read_bytes())
    assert len(list(start(steps=2, resume=True, model=str(moved)).metrics())) == 2


def test_a_step_of_many_batches_is_as_before(tmp_path: Path) -> None:
    """Counted ahead and made later, the batches and their order are those of one list."""
    path = tmp_path / "t"
    with TokenFileWriter(path) as writer:
        for tokens, labels in sequences(20):
            writer.add(tokens, [label != IGNORE for label in labels])
        writer.add([1, 2, 3], [0, 0, 0])
    file = TokenFile(path)
    one, many = BatchStream(file, Batching(SEQ_LEN), 5), BatchStream(file, Batching(SEQ_LEN), 5)
    single = []
    for _ in range(45):
        group = one.take(1)
        assert group is not None
        single += list(group.batches)
    for first in range(0, 45, 15):
        group = many.take(15)
        assert group is not None
        made = list(group.batches)
        assert group.n_terms == sum(batch.n_terms for batch in made)
        assert group.n_tokens == sum(batch.n_tokens for batch in made)
        for ours, theirs in zip(made, single[first : first + 15], strict=True):
            assert np.array_equal(ours.tokens, theirs.tokens)
            assert np.array_equal(ours.targets, theirs.targets)
    assert one.position == many.position
