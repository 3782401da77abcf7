"""The public functions of the package, as the README uses them."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import featherback as fb
from tests.runs.conftest import SEQ_LEN, sequences
from tests.support.oracle import random_adapter, reference, reference_model
from tests.support.tiers import some
from tests.support.tiny_chat import N_VOCAB, byte_level_metadata, write_messages, write_tiny_chat
from tests.support.tiny_models import TINY_LLAMA, tiny, write_tiny

if TYPE_CHECKING:
    from featherback.runs.options import TrainOptions

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
        ([1, -2], None, "token ids must be 0 or more"),
        ([5], None, "There is nothing to train"),
        ([1, 2], [-100, -100], "There is nothing to train"),
        ([[1, 2]], [1, 2], "like the tokens"),
        ([1.5, 2.5], None, "integers"),
        ([], None, "at least one sequence"),
        ([1, 2**32 + 2], None, "32 bits"),
        ([1, 2], [1, 999], "A label is 999"),
        ([1, 2], [1, -5], "A label is -5"),
        ([1, [2, 3]], None, "list of integers"),
        ([[1] * 9, [1] * 513], None, "has 513 tokens; the model supports at most 512"),
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
    with pytest.raises(fb.FeatherbackError, match="bf16, int16, fp32"):
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
    assert run.summary.final_loss == run.metrics[-1]["loss"]
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
    run = fb.train(str(path), str(data), tmp_path / "run", steps=2, seq_len=128, eval_data=data, memory="200GB")
    configuration = json.loads((run.path / "run.json").read_text())["configuration"]
    assert configuration["memory"] == 200_000_000_000
    assert configuration["data"] == [str(data)]
    assert "step 2/2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("examples", "complaint"),
    [
        ([[1, 2, 3], [4, 500]], "Example 1 has a token id outside"),
        ([[1, 2, 3], []], "Example 1 is not a list"),
        ([[1] * (SEQ_LEN + 1)], "more than the sequence length"),
        ([([1, 2], [1])], "another length"),
        ([([1, 2], [7, 7])], "a label must equal its token, or be -100"),
        ([([1, 2], [-100, -100])], "no supervised token"),
        ([[1], [2]], "no supervised token"),
        ([], "The data are empty"),
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
from pathlib import Path
import featherback as fb
from featherback.runs.rehearsal import rehearsed_baseline

def libraries():
    maps = Path("/proc/self/maps")
    return {line.split()[-1] for line in maps.read_text().splitlines() if ".so" in line} if maps.exists() else set()

model, out = sys.argv[1:]
options = {"out": out, "steps": 6, "seq_len": 64, "progress": False}
data = [list(range(60))] * 8
try:
    fb.train(model, data, memory="9MB", **options)
except fb.FeatherbackError as error:
    named = int(re.findall(r'memory="(\\d+)MB"', str(error))[0])
rehearsed_baseline()
before = libraries()
fb.train(model, data, memory=f"{named}MB", **options)
peak = json.load(open(out + "/run.json"))["summary"]["peak_rss_mb"]
print(json.dumps([named, peak, sorted(libraries() - before)]))
"""


def test_in_a_fresh_process_too_a_refusal_names_a_budget_that_is_accepted_and_kept(
    tiny_path: Path, tmp_path: Path
) -> None:
    """A process that was rejected uses more memory when it asks again.

    The budget counts the libraries that a rehearsed step loads, so training must load no others: OpenSSL takes 3.5 MB.
    """
    command = [sys.executable, "-c", _TRAIN_TWICE, str(tiny_path), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    named, peak, loaded = json.loads(done.stdout)
    assert loaded == []
    assert peak <= named


@pytest.mark.parametrize(
    "named", [{"rank": 8}, {"alpha": 16.0}, {"targets": "all"}, {"rslora": False}], ids=lambda named: next(iter(named))
)
def test_an_adapter_to_start_from_is_taken_as_it_is(tiny_path: Path, tmp_path: Path, named: dict[str, object]) -> None:
    """Every given option is compared with the adapter's, even if it equals the default of a new adapter."""
    model = fb.load(tiny_path)
    options: dict[str, object] = {"steps": 1, "seq_len": SEQ_LEN, "progress": False}
    own = {"rank": 2, "alpha": 3.0, "targets": "q,v", "rslora": True}
    first = fb.train(model, sequences(), tmp_path / "first", **own, **options)
    (name,) = named
    with pytest.raises(fb.FeatherbackError, match=f"--{name} is .* Remove --{name}: an existing"):
        fb.train(model, sequences(), tmp_path / "second", start=str(first.path), **named, **options)
    second = fb.train(model, sequences(), tmp_path / "second", start=str(first.path), **{name: own[name]}, **options)
    assert (second.adapter.rank, second.adapter.targets) == (2, ("q_proj", "v_proj"))


def _conversations(count: int = 6) -> list[list[dict[str, str]]]:
    lines = range(count)
    return [
        [{"role": "user", "content": f"{i} plus {i}?"}, {"role": "assistant", "content": f"{2 * i}"}] for i in lines
    ]


def test_conversations_and_records_as_data(tmp_path: Path) -> None:
    model = fb.load(write_tiny_chat(tmp_path / "m.gguf"))
    talks = _conversations()
    file = tmp_path / "d.jsonl"
    file.write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
    options: TrainOptions = {"steps": 2, "lr": 1e-3, "rank": 2, "compute": "fp32"}
    from_file = fb.train(model, file, tmp_path / "file", progress=False, **options)
    as_lists = fb.train(
        model, talks, tmp_path / "lists", eval_data=(talk for talk in talks[:2]), progress=False, **options
    )
    as_records = fb.train(
        model, iter([{"messages": talk} for talk in talks]), tmp_path / "records", progress=False,
        keep_checkpoints=True, **options
    )  # fmt: skip
    adapters = [(run.path / "adapter_model.safetensors").read_bytes() for run in (from_file, as_records)]
    assert adapters[0] == adapters[1]
    assert [line["loss"] for line in as_lists.metrics] == [line["loss"] for line in from_file.metrics]
    assert as_lists.summary.first_eval_loss is not None
    assert sorted(path.name for path in (as_lists.path / "tokens").iterdir()) == ["eval.tokens", "train.tokens"]
    again = fb.train(model, talks, tmp_path / "records", resume=True, steps=3, progress=False)
    assert again.summary.steps == 3
    with pytest.raises(fb.FeatherbackError, match="started with other data"):
        fb.train(model, talks[1:], tmp_path / "records", resume=True, steps=4, progress=False)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (_conversations()[0], "are the messages of one conversation; pass a list of conversations"),
        ([*_conversations(2), [{"role": "assistant"}]], 'the data, example 2: Message 1 has no "content"'),
        ([*_conversations(1), [1, 2, 3]], r"Example 1 is \[1, 2, 3\]; it must be a record, a list of messages or a"),
        ([{"text": object()}], "Example 0 cannot be written as JSON"),
        ([{"question": "a"}], "the data, example 0"),
    ],
)
def test_records_that_cannot_be_meant(tmp_path: Path, data: Any, says: str) -> None:
    model = fb.load(write_tiny_chat(tmp_path / "m.gguf"))
    with pytest.raises(fb.FeatherbackError, match=says):
        fb.train(model, data, tmp_path / "run", steps=1, progress=False)
    assert not (tmp_path / "run").exists()


def test_options_by_their_names_on_the_command_line(tiny_path: Path, tmp_path: Path) -> None:
    model = fb.load(tiny_path)
    run = fb.train(
        model, sequences(), tmp_path / "run", steps=1, seq_len=SEQ_LEN, lr=0.5, memory=100_000, progress=False
    )
    configuration = json.loads((run.path / "run.json").read_text())["configuration"]
    assert (configuration["learning_rate"], configuration["memory"]) == (0.5, 10**11)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"leraning_rate": 1}, "featherback.train has no option 'leraning_rate'. Did you mean `learning_rate"),
        ({"lr": 1, "learning_rate": 1}, "--lr and --learning-rate are the same option"),
        ({"rank": "8"}, "--rank is '8'; it must be a whole number"),
        (
            {"memory": 400_000_000},
            "--memory is 400000000; a number without a unit means megabytes. Write .* 400000000B",
        ),
    ]
    for options, says in wrong:
        with pytest.raises(fb.FeatherbackError, match=says):
            fb.train(model, sequences(), tmp_path / "none", **options)
    known = inspect.signature(fb.train).parameters
    assert known["seed"].default == 0
    assert {"lr", "beta1", "start", "log_to"} <= set(known)
    assert "lr: Peak learning rate." in (fb.train.__doc__ or "")


def test_a_model_answers(tmp_path: Path) -> None:
    model = fb.load(write_tiny_chat(tmp_path / "m.gguf"))
    run = fb.train(model, _conversations(), tmp_path / "run", steps=4, lr=0.05, rank=2, progress=False)
    question = "1 plus 1?"
    said = model.generate(question, max_tokens=6)
    messages = [{"role": "user", "content": question}]
    assert model.generate(messages, max_tokens=6) == said
    assert model.chat(temperature=0).ask(question, max_tokens=6) == said
    tuned = {model.generate(question, max_tokens=6, adapter=adapter) for adapter in (run, run.adapter, run.path)}
    assert len(tuned) == 1
    assert tuned != {said}
    assert model.tokenizer.decode(model.tokenizer.encode("one")) == "one"
    chat = model.chat(system="Be brief.")
    chat.ask("Hello", max_tokens=2)
    assert [message["role"] for message in chat.messages] == ["system", "user", "assistant"]
    with pytest.raises(fb.FeatherbackError, match='Message 1 has no "content"'):
        model.generate([{"role": "user"}])
    metadata = byte_level_metadata()
    del metadata["tokenizer.chat_template"]
    plain = write_tiny(tmp_path / "p.gguf", tiny(TINY_LLAMA, vocab_size=N_VOCAB), metadata=metadata)
    with pytest.raises(fb.FeatherbackError, match="no chat template"):
        fb.load(plain).chat()
    with pytest.raises(fb.FeatherbackError, match="--max-tokens is 0"):
        model.generate("a", max_tokens=0)


def test_what_things_say_of_themselves(tiny_path: Path, tmp_path: Path) -> None:
    model = fb.load(write_tiny_chat(tmp_path / "m.gguf"))
    assert re.fullmatch(r"Model\('m.gguf', llama, 2 layers, [\d,]+ parameters, F32\)", repr(model))
    run = fb.train(model, _conversations(), tmp_path / "run", steps=2, rank=2, targets="q,v", progress=False)
    assert re.fullmatch(r"Run\('.*run', finished, 2 steps, loss \d\.\d+ -> \d\.\d+\)", repr(run))
    assert re.fullmatch(r"LoRA\(rank 2, alpha 16, on q,v, [\d,]+ values, of 'm.gguf'\)", repr(run.adapter))
    assert re.fullmatch(r"Conversation\('m.gguf', 0 messages, 0 of 64 tokens used\)", repr(model.chat(context=64)))
    model.close()
    assert repr(model) == "Model('m.gguf', closed)"


@pytest.mark.parametrize("options", some([{}, {"dora": True}], 1))
def test_an_adapter_works_with_its_model_opened_again(tmp_path: Path, options: dict[str, Any]) -> None:
    path, tokens = write_tiny_chat(tmp_path / "m.gguf"), np.arange(20, dtype=np.int32)
    model, again = fb.load(path), fb.load(path)
    adapter = fb.LoRA(model, rank=2, seed=1, **options)
    adapter.load_state({name: values + 0.1 for name, values in adapter.state().items()})
    expected, gradients = fb.gradients(model, adapter, tokens)
    loss, others = fb.gradients(again, adapter, tokens)
    assert loss == expected
    assert all(np.array_equal(gradients[name], others[name]) for name in gradients | others)
    data = [{"prompt": "a", "completion": "b"}]
    assert fb.evaluate(again, data, adapter=adapter).loss == fb.evaluate(model, data, adapter=adapter).loss
    prompt: Any = {"prompt": "abc", "adapter": adapter, "max_tokens": 3}
    assert again.generate(**prompt) == model.generate(**prompt)
    model.close()
    assert fb.gradients(again, adapter, tokens)[0] == expected


def test_an_adapter_of_another_model_is_rejected(tmp_path: Path) -> None:
    model = fb.load(write_tiny_chat(tmp_path / "m.gguf"))
    other = fb.load(write_tiny_chat(tmp_path / "other.gguf", seed=1))
    adapter, said = fb.LoRA(model), r"The adapter was made for the model \S+m\.gguf, and this is \S+other\.gguf\. Open"
    for use in (
        lambda: fb.gradients(other, adapter, [1, 2, 3]),
        lambda: other.generate("a", adapter=adapter),
        lambda: fb.evaluate(other, [{"prompt": "a", "completion": "b"}], adapter=adapter),
    ):
        with pytest.raises(fb.FeatherbackError, match=said):
            use()
