"""The public functions of the package, as the README uses them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.support.oracle import random_adapter, reference, reference_model
from tests.support.tiny_chat import write_messages, write_tiny_chat
from tests.training.conftest import SEQ_LEN, sequences

import featherback as fb

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
LABELS = [-100] * 4 + TOKENS[4:]


def test_gradients_are_autograds(tiny_path: Path) -> None:
    theirs = reference_model(tiny_path)
    model = fb.load(tiny_path)
    adapter = fb.LoRA(model, rank=4, alpha=8)
    state = random_adapter(theirs, 4)
    adapter.load_state(state)
    several = ([TOKENS, TOKENS[::-1]], [LABELS, TOKENS[::-1]])
    for tokens, labels in ((TOKENS, None), (np.array(TOKENS), np.array(LABELS)), several):
        single = np.ndim(tokens[0]) == 0
        wanted = [labels] if single and labels is not None else labels
        expected = reference(theirs, state, [tokens] if single else tokens, wanted, alpha=8)
        loss, grads = fb.gradients(model, adapter, tokens, labels)
        assert loss == pytest.approx(expected.loss, rel=1e-5)
        assert grads.keys() == expected.grads.keys()
        for name, grad in grads.items():
            error = np.linalg.norm(grad - expected.grads[name])
            assert error <= 1e-4 * np.linalg.norm(expected.grads[name]), name


@pytest.mark.parametrize(
    ("tokens", "labels", "complaint"),
    [
        ([1, 2, 999], None, "999"),
        ([1, -2], None, "never negative"),
        ([5], None, "No token is trained"),
        ([1, 2], [-100, -100], "No token is trained"),
        ([[1, 2]], [1, 2], "like the tokens"),
        ([1.5, 2.5], None, "integers"),
        ([], None, "at least one sequence"),
        ([1, 2**32 + 2], None, "32 bits"),
        ([1, 2], [1, 999], "A label is 999"),
        ([1, 2], [1, -5], "A label is -5"),
        ([1, [2, 3]], None, "list of integers"),
        ([[1] * 9, [1] * 513], None, "has 513 tokens; the model was made for at most 512"),
        (5, None, "lists or arrays"),
        (iter([1, 2]), None, "lists or arrays"),
    ],
)
def test_gradients_of_nonsense(tiny_path: Path, tokens: object, labels: object, complaint: str) -> None:
    model = fb.load(tiny_path)
    with pytest.raises(fb.FeatherbackError, match=complaint):
        fb.gradients(model, fb.LoRA(model, rank=2), tokens, labels)  # type: ignore[arg-type]


def test_an_unknown_precision_and_an_adapter_of_nonsense(tiny_path: Path) -> None:
    model = fb.load(tiny_path)
    with pytest.raises(fb.FeatherbackError, match="bf16, fp32"):
        fb.gradients(model, fb.LoRA(model, rank=2), TOKENS, compute="fp16")
    with pytest.raises(fb.FeatherbackError, match="whole number"):
        fb.LoRA(model, rank=2.5)  # type: ignore[arg-type]
    with pytest.raises(fb.FeatherbackError, match="Alpha is nan"):
        fb.LoRA(model, alpha=float("nan"))


def test_train_on_tokens(tiny_path: Path, tmp_path: Path) -> None:
    model = fb.load(tiny_path)
    run = fb.train(
        model, sequences(), tmp_path / "run", steps=4, seq_len=SEQ_LEN, rank=2, targets="q,v", progress=False
    )
    assert run.status == "finished"
    assert [line["step"] for line in run.metrics] == [1, 2, 3, 4]
    assert run.summary["final_loss"] == run.metrics[-1]["loss"]
    assert run.path == tmp_path / "run"
    assert run.adapter.targets == ("q_proj", "v_proj")
    changed = [np.abs(b).max() for name, b in run.adapter.state().items() if "lora_B" in name]
    assert min(changed) > 0
    assert "4 steps" in repr(run)
    same = fb.train(model, sequences(), tmp_path / "run", resume=True, steps=4, seq_len=SEQ_LEN, rank=2,
                    targets="q,v", progress=False)  # fmt: skip
    assert len(same.metrics) == 4


def test_plan(tiny_path: Path) -> None:
    plan = fb.plan(tiny_path, seq_len=64, rank=4)
    assert plan.predicted_rss_mb is not None
    assert plan.predicted_footprint_mb is not None
    assert 10 < plan.predicted_footprint_mb < plan.predicted_rss_mb < 100
    with pytest.raises(fb.FeatherbackError, match="does not fit in 1MB"):
        fb.plan(tiny_path, seq_len=64, memory="1MB")
    with pytest.raises(fb.FeatherbackError, match="--seq-len 9999"):
        fb.plan(tiny_path, seq_len=9999)


def test_train_on_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_tiny_chat(tmp_path / "m.gguf")
    data = write_messages(tmp_path / "d.jsonl")
    run = fb.train(
        str(path), str(data), tmp_path / "run", steps=2, seq_len=128, eval_data=data, memory="200GB"
    )
    configuration = json.loads((run.path / "run.json").read_text())["configuration"]
    assert configuration["memory"] == 200_000_000_000
    assert configuration["data"] == str(data)
    assert "step 2/2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("examples", "complaint"),
    [
        ([[1, 2, 3], [4, 500]], "Example 1 has a token id outside"),
        ([[1, 2, 3], []], "Example 1 is no list"),
        ([[1] * (SEQ_LEN + 1)], "more than the sequence length"),
        ([([1, 2], [1])], "another length"),
        ([([1, 2], [7, 7])], "neither its token nor -100"),
        ([([1, 2], [-100, -100])], "no trained token"),
        ([[1], [2]], "no trained token"),
        ([], "no trained token"),
    ],
)
def test_bad_examples_leave_nothing_behind(
    tiny_path: Path, tmp_path: Path, examples: list[object], complaint: str
) -> None:
    out = tmp_path / "run"
    with pytest.raises(fb.FeatherbackError, match=complaint):
        fb.train(tiny_path, examples, out, steps=1, seq_len=SEQ_LEN)  # type: ignore[arg-type]
    assert not out.exists()


def test_the_public_names() -> None:
    assert {"load", "LoRA", "gradients", "train", "FeatherbackError", "__version__"} <= set(dir(fb))
    assert all(getattr(fb, name) is not None for name in fb.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        fb.nonsense  # noqa: B018


_TRAIN_TWICE = """
import json, re, sys
import featherback as fb

model, out = sys.argv[1:]
options = {"out": out, "steps": 6, "seq_len": 64, "progress": False}
data = [list(range(60))] * 8
try:
    fb.train(model, data, memory="9MB", **options)
except fb.FeatherbackError as error:
    named = int(re.findall(r"--memory (\\d+)MB", str(error))[0])
fb.train(model, data, memory=f"{named}MB", **options)
print(json.dumps([named, json.load(open(out + "/run.json"))["summary"]["peak_rss_mb"]]))
"""


def test_in_a_fresh_process_too_a_refusal_names_a_budget_that_is_accepted_and_kept(
    tiny_path: Path, tmp_path: Path
) -> None:
    """The process that was refused holds more than before when it asks again."""
    command = [sys.executable, "-c", _TRAIN_TWICE, str(tiny_path), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    named, peak = json.loads(done.stdout)
    assert peak <= named
