"""The whole job beside PEFT's, on a model small enough for a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import job
from featherback.data.tokenizers.loader import load_tokenizer
from featherback.errors import FeatherbackError
from tests.support.tiny_chat import write_tiny_chat


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_chat(tmp_path_factory.mktemp("job") / "m.gguf")


@pytest.mark.full("a whole job of PEFT in a process of its own")
def test_both_sides_do_the_same_job(model: Path, tmp_path: Path) -> None:
    ours, theirs = job.compare(str(model), "prefix", tmp_path, 2, quick=True)
    assert ours.supervised == theirs.supervised > 0
    # the same model on the same tokens; the other's bf16 is another arithmetic
    assert ours.before == pytest.approx(theirs.before, rel=2e-2)
    assert ours.after == pytest.approx(theirs.after, rel=2e-2)
    for each in (ours, theirs):
        assert min(each.prepare_seconds, each.steps_seconds, each.rest_seconds) > 0
        assert each.tree_mb is None or each.tree_mb > 20
    assert ours.to_json()["job_s"] == round(ours.seconds, 2)
    assert not any(tmp_path.iterdir())


def test_the_shared_prompt_is_as_long_as_said(model: Path, tmp_path: Path) -> None:
    chats = job.shared_prefix(model, tmp_path)
    first, second = chats.train.read_text().splitlines()[:2]
    common = next(i for i, (a, b) in enumerate(zip(first, second)) if a != b)
    assert len(load_tokenizer(model).encode(first[:common])) >= job.PREFIX
    assert len(chats.train.read_text().splitlines()) == 200


def test_unequal_tokens_are_refused(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = {"dtype": "bf16", "checkpointing": False}
    outcome = job.watch.Outcome("", 1.0, None, None)
    monkeypatch.setattr(job, "_peft", lambda *_: ({"supervised": [3]}, outcome))
    with pytest.raises(FeatherbackError, match=r"did not train on the same tokens: \[4\] of ours and \[3\]"):
        job.train_peft(job.demo_chats(), request, tmp_path, [4])
