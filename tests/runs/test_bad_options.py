"""Errors name a bad option as the user writes it: as an argument in Python, as a flag on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import featherback as fb
from featherback.core.naming import as_flags
from featherback.core.options import checked, flags
from featherback.runs.names import known, python_names
from featherback.runs.run_file import read
from tests.support.tiny_chat import write_messages, write_tiny_chat

PAIRS = [("Where is the key?", "Under the mat."), ("And the cat?", "On it.")] * 4
BAD: list[tuple[dict[str, Any], str]] = [
    ({"seq_len": 0}, "seq_len=0; it must be at least 2."),
    ({"seq_len": 99_999}, "seq_len=99999 is longer than"),
    ({"rank": 9999}, "rank=9999; it must be at most the model's width"),
    ({"memory": "much"}, "memory='much'; write an amount such as 96MB"),
    ({"memory": 10**9}, "memory=1000000000; a number without a unit means megabytes"),
    ({"memory": "1MB"}, 'these options need at least memory="'),
    ({"optimizer": "adam"}, "Did you mean `adamw`?"),
    ({"schedule": "cos"}, "Did you mean `cosine`?"),
    ({"method": "mesq"}, "Did you mean `mesp`?"),
    ({"compute": "fp23"}, "Did you mean `fp32`?"),
    ({"quantize": "q4-0"}, "Did you mean `q4_0`?"),
    ({"train": "ful"}, "Did you mean `full`?"),
    ({"targets": "qv"}, "Unknown LoRA target 'qv'; expected one of: q, k, v, o, gate, up, down"),
    (
        {"learing_rate": 1},
        "featherback.train has no option 'learing_rate'. Did you mean `learning_rate`? It is the same as `lr`.",
    ),
    ({"layers": "last:0"}, 'layers="last:0" trains nothing; choose at least one layer, such as last:1.'),
    ({"layers": "first:8"}, "is not a choice of layers; write all, last:8, last:25%, or a list such as 0,5,10-20."),
    ({"layers": 99}, 'layers="99", but the layers of the model are 0 to'),
    ({"layers": "last:99"}, 'use layers="all".'),
    ({"layers": 0.5}, "layers=0.5; write all, last:8, last:25%"),
    ({"num_layers": 4}, "has no option 'num_layers'. Did you mean `layers`?"),
    (
        {"layers": "last:1", "train": "full"},
        'layers chooses the layers of an adapter, but train="full" trains no adapter.',
    ),
    ({"xyzzy": 1}, "`help(featherback.train)` lists all options"),
    ({"apollo_rank": 4}, "Remove it, or choose another optimizer."),
    ({"start": ""}, "start=''; give a run or an adapter, or the word none"),
    ({"map": "prompt"}, "map='prompt'; expected KEY=COLUMN"),
    ({"map": "promt=a"}, "map names the unknown key 'promt'"),
    ({"map": "prompt=a"}, "there is no column 'a' for map="),
    ({"warmup": 1.5}, "warmup=1.5; write a number of steps"),
    ({"pause_on": "rain"}, "pause_on='rain'; write"),
    ({"log_to": "paper"}, "log_to='paper'; write"),
    ({"steps": 1, "epochs": 1}, "Use steps or epochs, not both."),
    ({"patience": 3, "eval_share": 0}, "patience needs eval_data or eval_share."),
    ({"freeze": "norm"}, 'freeze only works with train="full"; add train="full", or remove freeze.'),
    ({"train": "full", "rank": 4}, 'rank only works with adapters; remove rank, or remove train="full".'),
    ({"train": "full", "accumulate": 2}, 'accumulate=2, but train="full" cannot accumulate gradients'),
    ({"train": "full", "freeze": "nothing"}, 'freeze="nothing" matches no weight of'),
    ({"dora": True, "lora_dropout": 0.1}, "lora_dropout does not work with DoRA"),
    ({"optimizer": "apollo"}, 'optimizer="apollo" cannot train adapters'),
    ({"data": None}, "data is missing"),
    ({"out": None}, "out is missing"),
]


def refusal(**options: Any) -> str:
    with pytest.raises(fb.FeatherbackError) as caught:
        fb.train(**options)
    return str(caught.value)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> fb.Model:
    return fb.load(write_tiny_chat(tmp_path_factory.mktemp("model") / "m.gguf"))


@pytest.mark.usefixtures("in_python")
@pytest.mark.parametrize(("options", "says"), BAD, ids=lambda value: str(value)[:40])
def test_in_python(options: dict[str, Any], says: str, model: fb.Model, tmp_path: Path) -> None:
    place = model.path if "quantize" in options else model
    given = {"model": place, "data": PAIRS, "out": tmp_path / "run", "steps": 1, "progress": False}
    if "epochs" not in options:
        given["steps"] = 1
    said = refusal(**{**given, **options})
    assert says in said
    assert "--" not in said
    assert not (tmp_path / "run").exists()


def test_each_option_of_a_wrong_kind(tmp_path: Path) -> None:
    """A value that an option cannot have is rejected with its name in Python, and with its flag on the command line."""
    assert len(known()) > 50
    for field, (kind, *_) in known().items():
        name = python_names(field)[0]
        if name not in ("data", "out", "eval_data"):  # which have other meanings in Python
            with as_flags(False):
                said = refusal(model="m", data="d", out=str(tmp_path), **{name: [object()]})
            assert said.startswith(f"{name}="), said
            assert "--" not in said
        with pytest.raises(fb.FeatherbackError) as caught:
            checked(kind, field, [object()])
        assert str(caught.value).startswith(f"{flags(kind, field)[0]} is "), field


def test_on_the_command_line(model: fb.Model, tmp_path: Path) -> None:
    given = {"model": model, "data": PAIRS, "out": tmp_path / "run", "progress": False}
    assert refusal(**given, seq_len=0) == "--seq-len is 0; it must be at least 2."
    assert "these options need at least --memory " in refusal(**given, steps=1, memory="1MB")
    assert "--freeze only works with --train full" in refusal(**given, freeze="norm")


def test_a_key_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("rank: 8\nlearnin_rate: 3\n")
    with pytest.raises(fb.FeatherbackError, match=r"line 2: .*Did you mean `learning_rate`\?"):
        read(path)
    path.write_text("schedule: cosin\n")
    with pytest.raises(fb.FeatherbackError, match=r"line 1: .*Did you mean `cosine`\?"):
        read(path)


@pytest.mark.usefixtures("in_python")
def test_other_functions(model: fb.Model, tmp_path: Path) -> None:
    data = write_messages(tmp_path / "d.jsonl", 2)
    calls: list[tuple[str, Any]] = [
        ("max_tokens=0; it must be at least 1.", lambda: model.generate("a", max_tokens=0)),
        ("temperature=-1; it", lambda: model.generate("a", temperature=-1)),
        ("top_p=2; it", lambda: model.generate("a", top_p=2, stream=True)),
        ("top_k=-1; it", lambda: model.generate("a", top_k=-1, stream=True)),
        ("raw=True", lambda: model.generate("a", raw=True, system="b")),
        ("context=0; it", lambda: model.chat(context=0)),
        ("seq_len=0; it", lambda: fb.evaluate(model, data, seq_len=0)),
        ("seq_len=99999 is longer than", lambda: fb.evaluate(model, data, seq_len=99_999)),
        ("threads=0; it", lambda: fb.evaluate(model, data, threads=0)),
        ("compute='fp8'; expected one of", lambda: fb.evaluate(model, data, compute="fp8")),
        ("seq_len=0; it", lambda: fb.plan(model, seq_len=0)),
        ("Did you mean `seq_len`?", lambda: fb.plan(model, seqlen=8)),  # type: ignore[call-arg]
        ("quantize='q3'; expected one of", lambda: fb.load(model.path, "q3")),
        ("remove quantize, which is for Hugging Face folders", lambda: fb.load(model.path, "q4_0")),
        ("There is no adapter", lambda: fb.export(tmp_path / "none", "gguf")),
        ("Did you mean `gguf`?", lambda: fb.export(tmp_path, "ggfu")),
    ]
    for says, call in calls:
        with pytest.raises(fb.FeatherbackError) as caught:
            call()
        assert says in str(caught.value)
        assert "--" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ([("a", "b", "c")], "Example 0 is ('a', 'b', 'c'); pass texts as (prompt, completion) tuples"),
        ([["a", "b"]], "Example 0 is ['a', 'b']; pass texts as (prompt, completion) tuples"),
        ([("a", "b"), "c"], "Example 1 is 'c'; it must be a record, a list of messages or a (prompt"),
    ],
)
def test_texts_that_are_no_pairs(model: fb.Model, tmp_path: Path, data: Any, says: str) -> None:
    assert says in refusal(model=model, data=data, out=tmp_path / "run", progress=False)
