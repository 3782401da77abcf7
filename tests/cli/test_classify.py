"""`featherback classify`, and the loss that `evaluate` measures on labelled data."""

from __future__ import annotations

from pathlib import Path

import pytest

import featherback as fb
from featherback.errors import FeatherbackError
from tests.cli.conftest import Command

ROWS = [{"text": f"text {number}", "label": "odd" if number % 2 else "even"} for number in range(8)]


@pytest.fixture(scope="module")
def labels(chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier."""
    out = tmp_path_factory.mktemp("labels") / "run"
    fb.train(fb.load(chat_model), ROWS, out=out, objective="classify", steps=3, rank=2, progress=False)
    return out


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (b"one\n\n" + b"word " * 400 + b"\ntwo\n", "line 3: the text has 2000 tokens, and the model supports at most"),
        (b"one\ntwo \xff\n", "line 2: not UTF-8 text: save the file as UTF-8."),
        (b"\n \n", "has no text."),
    ],
)
def test_errors_name_the_line(
    command: Command, chat_model: Path, labels: Path, tmp_path: Path, lines: bytes, says: str
) -> None:
    file = tmp_path / "texts.txt"
    file.write_bytes(lines)
    code, _, err = command("classify", chat_model, "--adapter", labels, "--file", file)
    assert code == 2
    assert says in err
    assert str(file) in err
    assert len(err.splitlines()) == 1


def test_labels_do_not_depend_on_the_budget(chat_model: Path, labels: Path) -> None:
    """Texts grow, so the plan is made again and again for the longer ones; or once, for all of them."""
    model, texts = fb.load(chat_model), ["a", "word " * 20, "b", "other " * 40]
    free = model.classify(texts, adapter=labels, compute="fp32")
    for found in (
        model.classify(texts, adapter=labels, compute="fp32", memory="least"),
        [model.classify(text, adapter=labels, compute="fp32", memory="least")[0] for text in texts],
    ):
        assert [each.label for each in found] == [each.label for each in free]
        for one, other in zip(found, free, strict=True):
            assert one.scores == pytest.approx(other.scores, rel=1e-4, abs=1e-5)
    with pytest.raises(FeatherbackError, match=r"The adapter does not fit in 1MB: these options need at least"):
        model.classify(texts[:1], adapter=labels, memory="1MB")
    with pytest.raises(FeatherbackError, match=r"^text 1: the text is empty"):
        model.classify(["a", ""], adapter=labels)


def test_unused_labels_are_reported(command: Command, chat_model: Path, messages: Path, tmp_path: Path) -> None:
    """Regression: an adapter without a head measured the loss of the texts, and the labels were ignored."""
    data, run = tmp_path / "d.jsonl", tmp_path / "run"
    fb.train(fb.load(chat_model), messages, out=run, steps=1, rank=2, seq_len=96, samples=0, progress=False)
    data.write_text("".join(f'{{"text": "{row["text"]}", "label": "{row["label"]}"}}\n' for row in ROWS))
    code, out, _ = command("evaluate", chat_model, "--data", data, "--adapter", run)
    assert code == 0
    assert "The labels in the data were not used: this is the loss of the texts." in out
    assert "--objective classify" in out


def test_an_evaluation_does_not_depend_on_the_budget(chat_model: Path, labels: Path, messages: Path) -> None:
    model = fb.load(chat_model)
    for data, adapter in ((str(messages), None), (ROWS, labels)):
        free = fb.evaluate(model, data, adapter=adapter, compute="fp32")
        least = fb.evaluate(model, data, adapter=adapter, compute="fp32", memory="least")
        assert least.loss == pytest.approx(free.loss, rel=1e-5)
        assert (least.tokens, least.measures) == (free.tokens, free.measures)
    with pytest.raises(FeatherbackError, match=r"The evaluation does not fit in 1MB: these options need at least"):
        fb.evaluate(model, str(messages), memory="1MB")
