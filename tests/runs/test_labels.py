"""Runs with a trained head: labels of texts and rewards of answers, their data, files, evaluation and resuming."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel

import featherback as fb
from featherback import models
from featherback.cli.preamble import print_preamble
from featherback.data.labelled import LabelledFile, in_order
from featherback.data.token_file import TokenFile
from featherback.errors import FeatherbackError
from featherback.exports import formats
from featherback.exports.formats import peft
from featherback.exports.formats.peft import FORMAT as PEFT
from featherback.runs import evaluating
from featherback.runs.config import TrainConfig
from featherback.runs.exporting import export
from featherback.runs.preparation import prepare_run, resume_run
from featherback.runs.rehearsal import rehearsed_baseline
from featherback.runs.run_directory import RunDirectory
from featherback.runs.trainer import train_run
from featherback.view.reporter import JSONReporter, TextReporter
from featherback.view.show import draw
from tests.support.oracle import reference_model
from tests.support.scores import classifier
from tests.support.tiers import some
from tests.support.tiny_chat import write_tiny_base, write_tiny_chat

Make = Callable[..., RunDirectory]
WORDS = {"cold": "ice snow", "hot": "sun fire", "wet": "rain sea"}


def rows(count: int = 60, key: str = "text") -> list[dict[str, Any]]:
    """Short texts of three labels."""
    names = list(WORDS)
    return [{key: f"{WORDS[names[i % 3]]} {i}", "label": names[i % 3]} for i in range(count)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_chat(tmp_path_factory.mktemp("model") / "chat.gguf")


@pytest.fixture
def make(model: Path, tmp_path: Path) -> Make:
    """Prepare a run on `data`, through all stages up to training."""

    def prepared(data: Any = None, name: str = "run", **options: Any) -> RunDirectory:
        given = data if isinstance(data, Path) else None
        config = TrainConfig.of(
            model=str(model), data=str(given) if given else "records", out=str(tmp_path / name),
            **{"objective": "classify", "compute": "fp32", "rank": 4, "steps": 8, "learning_rate": 1e-2,
               "batch_tokens": 256, "threads": 1, "save_every": 4, "keep_checkpoints": True, **options},
        )  # fmt: skip
        return prepare_run(config, None if given else data or rows(), baseline=rehearsed_baseline)

    return prepared


def trained(run: RunDirectory, *callbacks: Any) -> RunDirectory:
    train_run(run, *callbacks, draw=draw)
    return RunDirectory.open(run.path)


def logits(model: Path, run: Path, ids: np.ndarray, outputs: int) -> np.ndarray:
    """The scores by transformers and PEFT, which opens the run's directory."""
    network = PeftModel.from_pretrained(classifier(reference_model(model), outputs), str(run)).eval()
    with torch.no_grad():
        found: np.ndarray = network(input_ids=torch.from_numpy(ids)[None].long()).logits[0].numpy()
    return found


def test_a_run_learns_labels(make: Make, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(make(), JSONReporter())
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    evaluations = [each for each in events if each["event"] == "evaluation"]
    assert evaluations[0]["eval_loss"] == pytest.approx(math.log(3), abs=1e-5)  # the head begins as zeros
    assert evaluations[-1]["accuracy"] == evaluations[-1]["macro_f1"] == 1
    assert all({"accuracy", "macro_f1"} <= line.keys() for line in run.metrics())
    assert run.config.labels == ("cold", "hot", "wet")
    assert "macro-F1" in (run.path / "report.html").read_text(encoding="utf-8")
    names = json.loads((run.path / "labels.json").read_text())
    assert names == {"id2label": {"0": "cold", "1": "hot", "2": "wet"}, "label2id": {"cold": 0, "hot": 1, "wet": 2}}

    opened = fb.load(model)
    found = opened.classify([each["text"] for each in rows(6)], adapter=run.path, compute="fp32")
    assert [each.label for each in found] == [each["label"] for each in rows(6)]
    ids = np.frombuffer(rows()[0]["text"].encode(), np.uint8).astype(np.int32)
    np.testing.assert_allclose(list(found[0].scores.values()), logits(model, run.path, ids, 3), rtol=1e-3, atol=1e-4)
    assert sum(found[0].probabilities.values()) == pytest.approx(1)

    measured = evaluating.evaluate_data(
        opened, "records", formats.load(opened, run.path), compute="fp32", examples=rows()
    )
    assert measured.measures == {"accuracy": 1.0, "macro_f1": 1.0}
    assert measured.tokens == 60
    wrong = [{"text": each["text"], "label": "hot" if each["label"] == "cold" else "cold"} for each in rows(4)]
    measured = evaluating.evaluate_data(
        opened, "records", formats.load(opened, run.path), compute="fp32", examples=wrong
    )
    assert measured.measures == {"accuracy": 0.0, "macro_f1": 0.0}  # nothing else is counted, such as a dry run


def test_a_planted_fault_is_found_the_head_is_not_saved(
    make: Make, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes, tensors = peft._shapes, peft._tensors
    monkeypatch.setattr(peft, "_shapes", lambda adapter: {n: s for n, s in shapes(adapter).items() if "score" not in n})
    monkeypatch.setattr(peft, "_tensors", lambda adapter: ((n, v) for n, v in tensors(adapter) if "score" not in n))
    run = trained(make())
    monkeypatch.undo()
    with pytest.raises(FeatherbackError, match="no trained head"):
        fb.load(model).classify("ice", adapter=run.path)


def test_the_text_says_what_changed(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    trained(make(), TextReporter())
    said = capsys.readouterr().out
    assert "step 0/8  held-out loss 1.0986  accuracy" in said
    assert "macro-F1" in said
    assert "held-out accuracy" in said


@pytest.mark.parametrize(
    "options",
    some(
        [
            {"optimizer": "adamw8bit"},
            {"method": "lcsb"},
            {"layers": "last:1"},
            {"method": "mezo", "learning_rate": 1e-3, "steps": 6, "save_every": 3},
        ],
        2,
    ),
    ids=str,
)
def test_an_interrupted_run_ends_as_one_that_was_not(
    make: Make, model: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    """The head has a place in checkpoints, in the average, and in every method's and optimizer's states."""
    whole = trained(make(name="whole", **options))
    half = trained(make(**{**options, "steps": int(whole.config.steps or 0) // 2, "schedule": "constant"}))
    resumed = resume_run(
        {"model": str(model), "out": str(half.path), "steps": whole.config.steps}, baseline=rehearsed_baseline
    )
    resumed = trained(resumed)
    again = trained(make(name="again", **{**options, "schedule": "constant"}))
    read = [(each.path / "adapter_model.safetensors").read_bytes() for each in (resumed, again)]
    assert read[0] == read[1]
    assert resumed.record.evaluations[-1] == again.record.evaluations[-1]


def test_the_preamble_of_a_run_whose_texts_have_the_whole_sequence_length(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make(seq_len=4, cut=True)
    print_preamble(run, models.load(run.config.model))
    assert "up to 256 tokens, packed with whole examples" in " ".join(capsys.readouterr().out.split())


def test_the_order_of_labels() -> None:
    assert in_order(["10", "-2", "9"]) == ("-2", "9", "10")
    assert in_order(["3", "--5"]) == ("--5", "3")  # not a number


def test_numbers_and_truth_values_are_labels(make: Make, tmp_path: Path) -> None:
    data = [{**each, "label": (10, 9, 2.0)[i % 3]} for i, each in enumerate(rows())]
    run = make(data, name="numbers")
    assert run.config.labels == ("2", "9", "10")
    file = LabelledFile(run.tokens / "train.tokens", run.config.labels)
    indices = np.arange(len(file))
    batch = file.batch(indices)
    texts = [bytes(batch.tokens[a:b].tolist()).decode() for a, b in zip(batch.cu_seqlens, batch.cu_seqlens[1:])]
    ids = batch.targets[batch.cu_seqlens[1:] - 1]
    words = list(WORDS.values())
    assert [words[2 - each] for each in ids] == [" ".join(each.split()[:2]) for each in texts]
    assert file.lengths(indices).sum() == batch.n_tokens
    run.release()
    run = make([{**each, "label": i % 2 == 0} for i, each in enumerate(rows())], name="truth")
    assert run.config.labels == ("false", "true")
    run.release()


def test_labels_in_a_table(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["review", "topic"])
        writer.writeheader()
        writer.writerows({"review": each["text"], "topic": each["label"]} for each in rows())
    run = make(path, columns=("text=review", "label=topic"), labels="wet,hot,cold")
    assert run.config.labels == ("wet", "hot", "cold")
    run.release()


def test_prompts_and_messages_are_in_the_chat_template(make: Make, model: Path) -> None:
    for name, data in (
        ("prompts", rows(key="prompt")),
        ("messages", [{"messages": [{"role": "user", "content": r["text"]}], "label": r["label"]} for r in rows()]),
    ):
        run = trained(make(data, name=name, steps=2))
        tokens = TokenFile(run.tokens / "train.tokens").seq(0)[0][:-1].tolist()
        text = "".join({257: "<|im_start|>", 258: "<|im_end|>"}.get(t, chr(t)) for t in tokens)
        assert text.startswith("<|im_start|>user\n")
        assert text.endswith("<|im_end|>\n")
        (found,) = fb.load(model).classify("ice snow 0", adapter=run.path)  # wrapped, as the run was trained
        (bare,) = fb.load(model).classify("ice snow 0", adapter=run.path, chat=False)
        assert found.scores != bare.scores


def test_a_base_model_reads_prompts_as_text(make: Make, tmp_path: Path) -> None:
    base = write_tiny_base(tmp_path / "base.gguf")
    config = TrainConfig.of(model=str(base), data="records", out=str(tmp_path / "b"), objective="classify", steps=2)
    run = prepare_run(config, rows(key="prompt"), baseline=rehearsed_baseline)
    tokens = TokenFile(run.tokens / "train.tokens").seq(0)[0][:-1].tolist()
    assert bytes(tokens).decode() in {each["text"] for each in rows()}
    run.release()


def test_rewards(make: Make, model: Path) -> None:
    pairs = [{"prompt": f"What is {i}+{i}?", "chosen": f"Sure: {2 * i}", "rejected": f"No {2 * i}!"} for i in range(44)]
    run = trained(make(pairs, objective="reward", batch_tokens=None, batch_size=8))
    before, *_, after = run.record.evaluations
    assert (before.measures["accuracy"], before.measures["margin"], before.loss) == (
        0.5,
        0.0,
        pytest.approx(math.log(2)),
    )
    assert after.measures["accuracy"] > 0.9
    rewards = [after.measures[f"{name}_reward"] for name in ("chosen", "rejected")]
    assert after.measures["margin"] == pytest.approx(rewards[0] - rewards[1])
    said = [{"role": "user", "content": "What is 3+3?"}]
    better, worse = fb.load(model).classify(
        [[*said, {"role": "assistant", "content": answer}] for answer in ("Sure: 6", "No 6!")], adapter=run.path
    )
    assert better.label is None
    assert better.scores["reward"] > worse.scores["reward"]
    opened = models.load(model)
    found = evaluating.evaluate_data(opened, "records", formats.load(opened, run.path), examples=pairs)
    assert found.measures["accuracy"] > 0.9
    assert found.tokens == 44


def test_training_goes_on_from_a_head(make: Make, model: Path) -> None:
    first = trained(make(name="first"))
    run = make(start=str(first.path), rank=None)
    assert run.config.labels == ("cold", "hot", "wet")
    assert trained(run).record.evaluations[0].measures["accuracy"] == 1
    with pytest.raises(FeatherbackError, match="has a head with 3 scores"):
        make(start=str(first.path), rank=None, objective="next_token", name="other")
    with pytest.raises(FeatherbackError, match="keeps its labels"):
        make(start=str(first.path), rank=None, labels="a,b,c", name="other")
    plain = trained(make([{"text": "some text"}] * 50, objective="next_token", name="plain", steps=1))
    with pytest.raises(FeatherbackError, match="has no trained head"):
        make(start=str(plain.path), rank=None, name="other")


def test_only_peft_holds_a_head(make: Make, model: Path, tmp_path: Path) -> None:
    run = trained(make(steps=2))
    for target in ("gguf", "mlx", "merged", "ollama"):
        with pytest.raises(FeatherbackError, match="only a PEFT directory can hold"):
            export(run.path, target, out=tmp_path / target)
    done = export(run.path, "peft", out=tmp_path / "peft")
    assert "AutoModelForSequenceClassification" in done.next
    assert "num_labels=3" in done.next
    opened = models.load(model)
    adapters = [formats.load(opened, path) for path in (run.path, tmp_path / "peft")]
    assert adapters[0].outputs == adapters[1].outputs == ("cold", "hot", "wet")
    assert all((a == b).all() for a, b in zip(*(each.state().values() for each in adapters)))
    (tmp_path / "peft" / "labels.json").unlink()
    assert formats.load(opened, tmp_path / "peft").outputs == ("LABEL_0", "LABEL_1", "LABEL_2")
    with pytest.raises(FeatherbackError, match="featherback classify"):
        fb.load(model).generate("Hello", adapter=run.path)
    PEFT.remove(run.path)
    assert not (run.path / "labels.json").exists()


def test_long_texts_are_rejected_or_cut(make: Make) -> None:
    data = [*rows(), {"text": "ice " * 40, "label": "cold"}]
    with pytest.raises(FeatherbackError, match="160"):
        make(data, seq_len=64)
    run = make(data, seq_len=64, cut=True, eval_share=0.0)
    assert LabelledFile(run.tokens / "train.tokens", run.config.outputs).max_length == 64
    run.release()


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ([{"text": "a"}] * 3, {}, r'"label" is missing; to read it from another column'),
        ([{"text": "a", "label": 0.5}] * 3, {}, r'"label" is .*0\.5.*; it must be text or a whole number'),
        ([{"text": "a", "label": "x"}] * 3, {}, r"All examples have the label 'x'"),
        ([{"text": str(i), "label": i} for i in range(1002)], {"steps": None, "epochs": 1.0}, "more than 1000 labels"),
        (rows(), {"labels": "cold,hot"}, "The data have the label 'wet', which is not one of the labels"),
        ([{"chosen": "a", "rejected": "b"}] * 3, {}, "expected a label with a text"),
        ([{"prompt": "a", "label": "x"}] * 3, {"objective": "next_token"}, r'"completion" is missing'),
        ([{"prompt": "a", "label": True}] * 3, {"objective": "kto"}, r'"completion" is missing'),
        ([[1, 2, 3]], {}, "needs texts with labels, and token lists cannot hold them"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unusable_data(make: Make, data: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(FeatherbackError, match=message):
        make(data, **options)


def test_unusable_options(make: Make) -> None:
    for options, message in (
        ({"train": "full", "rank": None}, "trains a head beside an adapter"),
        ({"adapter": "spartan", "rank": None}, "a head that only PEFT's files can hold"),
        ({"objective": "dpo", "labels": "a,b"}, "labels='a,b'|labels.* only works with"),
        ({"labels": "a"}, "at least two different names"),
    ):
        with pytest.raises(FeatherbackError, match=message):
            make(**options)
