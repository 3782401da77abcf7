"""A complete session in Python, as in a notebook."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import featherback as fb
from featherback.runs.callback import Callback
from tests.support.tiny_chat import write_messages, write_tiny_chat

PAIRS = [("Where is the key?", "Under the mat."), ("And the cat?", "On the mat.")] * 3


class StopAt(Callback):
    """Interrupts a run, as Ctrl-C does."""

    def __init__(self, step: int) -> None:
        self.last = step

    def step(self, event: object) -> None:
        if getattr(event, "step", 0) == self.last:
            raise KeyboardInterrupt


def test_a_session(tmp_path: Path) -> None:
    model = fb.load(write_tiny_chat(tmp_path / "m.gguf"))
    questions = write_messages(tmp_path / "held-out.jsonl", 3)
    out = tmp_path / "run"

    # Questions with answers, and a run that is interrupted; to go on, it needs its directory alone.
    with pytest.raises(KeyboardInterrupt):
        fb.train(
            model, PAIRS, out, steps=4, lr=0.05, rank=2, save_every=1, samples=0, progress=False,
            callbacks=[StopAt(2)],
        )  # fmt: skip
    run = fb.train(model, out=out, resume=True, progress=False)
    assert run.status == "finished"
    assert [line["step"] for line in run.metrics] == [1, 2, 3, 4]

    # What it has learned.
    before, after = fb.evaluate(model, PAIRS), fb.evaluate(model, PAIRS, adapter=run)
    assert after.loss < before.loss
    assert after.perplexity == math.exp(after.loss)
    assert after.tokens == before.tokens > 0
    assert after.report is not None
    assert after.report.examples == len(PAIRS)
    by_path, by_adapter = (
        fb.evaluate(model, questions, adapter=each, compute="bf16").loss for each in (run.path, run.adapter)
    )
    assert by_path == by_adapter
    tokens = fb.evaluate(model, [[1, 2, 3, 4]])
    assert (tokens.tokens, tokens.report) == (3, None)

    # Answers, whole and piece by piece.
    answer = model.generate("Where is the key?", adapter=run, max_tokens=6)
    pieces = model.generate("Where is the key?", adapter=run, max_tokens=6, stream=True)
    assert iter(pieces) is pieces
    assert "".join(pieces) == answer

    # For other programs.
    exported = fb.export(run, to="gguf", out=tmp_path / "adapter.gguf")
    assert exported.path == tmp_path / "adapter.gguf"
    assert exported.path.read_bytes()[:4] == b"GGUF"
    assert "llama-cli" in exported.next
    with pytest.raises(fb.FeatherbackError, match="already exists"):
        fb.export(out, to="gguf", out=tmp_path / "adapter.gguf")
    again = fb.export(out, to="gguf", out=tmp_path / "adapter.gguf", model=model, type="f16", force=True)
    assert "F16" in again.notes[0]
    merged = fb.merge(run, out=tmp_path / "merged.gguf", type="f32")
    assert merged.notes
    whole = fb.load(merged.path)
    assert fb.evaluate(whole, PAIRS, compute="fp32").loss == pytest.approx(
        fb.evaluate(model, PAIRS, adapter=run, compute="fp32").loss, rel=1e-4
    )


def test_pairs_are_prompts_and_completions(tmp_path: Path) -> None:
    model = fb.load(write_tiny_chat(tmp_path / "m.gguf"))
    records = [{"prompt": prompt, "completion": completion} for prompt, completion in PAIRS]
    measured = [fb.evaluate(model, data) for data in (PAIRS, iter(PAIRS), records)]
    assert len({(each.loss, each.tokens) for each in measured}) == 1


def test_the_public_names_are_what_they_say() -> None:
    import featherback.exports  # a package called as a function would take its place

    for name in fb.__all__:
        assert getattr(fb, name) is not featherback.exports
    assert all(callable(getattr(fb, name)) for name in ("evaluate", "export", "merge", "train", "plan", "load"))
    for name in ("evaluate", "export", "merge"):
        assert "FeatherbackError" in (getattr(fb, name).__doc__ or "")
