"""Every wrong option is named in one clear error."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import pytest

from featherback import models, optim
from featherback.core import options
from featherback.core.decode import decode, encode
from featherback.core.options import Panel, choice, described, field_types, flags, option
from featherback.errors import FeatherbackError
from featherback.runs import parse
from featherback.runs.changes import check_resume, resumed_options, with_overrides
from featherback.runs.config import CHOICES, PANELS, TrainConfig

BASE: dict[str, Any] = {"model": "m.gguf", "data": "d.jsonl", "out": "run"}


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"start": ""}, "--from is ''; give a run or an adapter, or the word none."),
        ({"start": 3}, "--from is 3; it must be text."),
        ({"rank": 0}, "--rank is 0; it must be at least 1"),
        ({"rank": -3}, "--rank is -3"),
        ({"alpha": 0}, "--alpha is 0; it must be a positive number"),
        ({"alpha": float("nan")}, "--alpha is nan"),
        ({"targets": ("q_proj", "query")}, "Unknown LoRA target 'query'"),
        ({"targets": 5}, "--targets is 5; write all, or a list such as q,v"),
        ({"targets": [1]}, "--targets is [1]; write all"),
        ({"targets": ()}, "list of LoRA targets is empty"),
        ({"seq_len": 1}, "--seq-len is 1; it must be at least 2"),
        ({"batch_size": 0}, "--batch-size is 0"),
        ({"accumulate": 0}, "--accumulate is 0"),
        ({"steps": 0}, "--steps is 0"),
        ({"epochs": 0}, "--epochs is 0"),
        ({"steps": 5, "epochs": 1}, "not both"),
        ({"learning_rate": -1.0}, "--lr is -1.0"),
        ({"learning_rate": float("inf")}, "--lr is inf"),
        ({"optimizer": "adam"}, f"--optimizer is 'adam'; expected one of: {', '.join(optim.RULES.names)}."),
        ({"schedule": "step"}, "--schedule is 'step'"),
        ({"compute": "fp16"}, "--compute is 'fp16'; expected one of: auto, bf16, int16, fp32"),
        ({"method": "autograd"}, "--method is 'autograd'"),
        ({"warmup": -1}, "--warmup is -1"),
        ({"rslora": 1}, "--rslora is 1; it must be true or false"),
        ({"dora": True, "lora_dropout": 0.1}, "--lora-dropout does not work with DoRA"),
        ({"loraplus_ratio": 0}, "--loraplus-ratio is 0; it must be a positive number"),
        ({"warmup": 2.5}, "--warmup is 2.5; write a number of steps such as 20, or a share of all steps such as 0.05."),
        ({"warmup": "much"}, "--warmup is 'much'; write a number of steps"),
        ({"warmup": True}, "--warmup is True; write a number of steps"),
        ({"epochs": float("nan")}, "--epochs is nan; it must be a positive number and at most 10000."),
        ({"weight_decay": -0.1}, "--weight-decay is -0.1"),
        ({"max_grad_norm": -1.0}, "--max-grad-norm is -1.0"),
        ({"seed": -1}, "--seed is -1"),
        ({"threads": 0}, "--threads is 0"),
        ({"eval_every": 5, "eval_share": 0}, "--eval-every needs --eval-data or --eval-share."),
        ({"patience": 5, "eval_share": 0.0}, "--patience needs --eval-data or --eval-share."),
        ({"eval_share": 1}, "--eval-share is 1; it must be at least 0 and less than 1"),
        ({"save_every": 0}, "--save-every is 0"),
        ({"steps": 1.5}, "--steps is 1.5; it must be a whole number"),
        ({"steps": "1"}, "--steps is '1'; it must be a whole number"),
        ({"rank": True}, "--rank is True"),
        ({"memory": 9.5e7}, "--memory is 95000000.0"),
        ({"weight_decay": float("inf")}, "--weight-decay is infinite"),
        ({"max_grad_norm": float("inf")}, "--max-grad-norm is infinite"),
        ({"max_grad_norm": float("nan")}, "--max-grad-norm is nan; it must be at least 0"),
        ({"learning_rate": "fast"}, "--lr is 'fast'; it must be a number"),
        ({"eval_data": 7}, "--eval-data is 7; it must be text"),
        ({"beta1": 1.0}, "--beta1 is 1.0; it must be at least 0 and less than 1"),
        ({"beta2": -0.1}, "--beta2 is -0.1"),
        ({"eps": 0}, "--eps is 0; it must be a positive number"),
        (
            {"optimizer": "sgd", "beta1": 0.5},
            "--beta1 is not an option of the optimizer sgd. Its options are: --weight-decay.",
        ),
        (
            {"optimizer_options": {"beta3": 1}},
            "--beta3 is not an option of the optimizer adamw. Its options are: --beta1, ",
        ),
        ({"method": "mezo", "epsilon": 0}, "--epsilon is 0; it must be a positive number"),
        ({"method": "mezo", "directions": 0}, "--directions is 0; it must be at least 1"),
        ({"method": "mezo", "directions": 1.5}, "--directions is 1.5; it must be a whole number"),
        (
            {"epsilon": 1e-3},
            "--epsilon is not an option of the method mesp. Its options are: --keep-precision. Remove it, or choose "
            "another --method.",
        ),
        (
            {"method": "mezo", "method_options": {"radius": 1}},
            "--radius is not an option of the method mezo. Its options are: --epsilon, --directions.",
        ),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(FeatherbackError) as raised:
        TrainConfig.of(**{**BASE, **options})
    assert complaint in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_is_checked_by_itself(panel: type) -> None:
    """Its rules need nothing of another panel's; of two options of which one takes the other's place, one is named."""
    own = asdict(panel())
    assert own == {name: getattr(TrainConfig(model="m.gguf", out="run"), name) for name in own}
    for name, about in described(panel).items():
        if about.instead_of:
            with pytest.raises(FeatherbackError, match=r"^Use --\S+ or --\S+, not both\.$"):
                panel(**{name: 2, about.instead_of: 2})
        if about.least is not None:
            with pytest.raises(FeatherbackError, match=re.escape(flags(panel, name)[0])):
                panel(**{name: about.least - 1})


@dataclass(frozen=True, kw_only=True)
class MadeUp(Panel):
    optimizer: str = choice("sgd", own=optim.OPTIONS, help="A choice.")
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    few: int | None = option(None, help="Some.", least=1)
    many: int | None = option(None, help="Others.", instead_of="few")
    words: tuple[str, ...] | None = option(None, help="Words.", parse=parse.patterns, flags=("--word",))


def test_an_option_more_is_a_field_more() -> None:
    """Its checks, its choices' own options and what it takes the place of follow from what the field says."""
    made = replace(MadeUp(few=2), words="a, b*")
    assert (made.few, made.words, made.optimizer_options) == (2, ("a", "b*"), {"weight_decay": 0.0})
    for wrong, complaint in (
        ({"few": 0}, "--few is 0; it must be at least 1."),
        ({"few": 1, "many": 1}, "Use --few or --many, not both."),
        ({"optimizer": "sdg"}, "--optimizer is 'sdg'; expected one of"),
        ({"words": ""}, "--word is ''; write a list of names such as embed_tokens,layers.0.*."),
    ):
        with pytest.raises(FeatherbackError, match=re.escape(complaint)):
            MadeUp(**wrong)


def test_json_round_trip() -> None:
    config = TrainConfig(**BASE, targets=("down_proj", "q_proj"), memory=96_000_000, steps=3)
    assert config.targets == ("q_proj", "down_proj")
    assert decode(TrainConfig, json.loads(json.dumps(encode(config))), "run.json") == config


def test_the_optimisers_options_are_recorded_in_full() -> None:
    config = TrainConfig(**BASE, optimizer_options={"beta1": 0.8})
    assert config == TrainConfig.of(**BASE, beta1=0.8)
    recorded = encode(config)["optimizer_options"]
    assert recorded == {"beta1": 0.8, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}


def test_the_methods_options_are_recorded_in_full() -> None:
    config = TrainConfig(**BASE, method="mezo", method_options={"directions": 4})
    assert config == TrainConfig.of(**BASE, method="mezo", directions=4)
    assert encode(config)["method_options"] == {"epsilon": 1e-2, "directions": 4}
    assert decode(TrainConfig, json.loads(json.dumps(encode(config))), "run.json") == config


def test_every_option_has_a_name_and_flags_of_its_own_and_types_agree() -> None:
    names = [field.name for field in fields(TrainConfig)]
    spelled = [flag for name in names for flag in flags(TrainConfig, name)]
    for own in CHOICES:
        for name, kinds in own.by_option().items():
            (declared,) = {(field_types(kind, name), flags(kind, name)) for kind in kinds.values()}
            names.append(name)
            spelled += declared[1]
    assert len(set(names)) == len(names)
    assert len(set(spelled)) == len(spelled)


def test_a_start_is_taken_back_with_none() -> None:
    assert TrainConfig(**BASE, start="none").start is None
    file = {"start": "/a", "rank": 4}
    assert TrainConfig.of(**BASE, **with_overrides(file, {"start": None})).rank == 4
    assert with_overrides(file, {"start": "/b"}) == {"start": "/b"}


def test_resume_names_every_difference() -> None:
    earlier = TrainConfig(**BASE, rank=8, seq_len=64, steps=10)
    with pytest.raises(FeatherbackError, match=r"--rank was 8, not 16; --seq-len was 64, not 32"):
        check_resume(TrainConfig(**BASE, rank=16, seq_len=32), earlier)
    with pytest.raises(FeatherbackError, match=r"other options: --beta1 was 0.9, not 0.8\. Use the options of the run"):
        check_resume(TrainConfig.of(**BASE, seq_len=64, beta1=0.8), earlier)
    with pytest.raises(FeatherbackError, match=r"other options: --optimizer was adamw, not sgd\. Use"):
        check_resume(TrainConfig(**BASE, seq_len=64, optimizer="sgd"), earlier)
    check_resume(TrainConfig(**BASE, seq_len=64, steps=20, threads=1), earlier)
    estimated = TrainConfig.of(**BASE, method="mezo", epsilon=1e-3)
    with pytest.raises(FeatherbackError, match=r"other options: --epsilon was 0.001, not 0.01\. Use"):
        check_resume(TrainConfig(**BASE, method="mezo"), estimated)
    with pytest.raises(FeatherbackError, match=r"other options: --method was mezo, not mesp\. Use"):
        check_resume(TrainConfig(**BASE), estimated)


def test_a_start_may_be_named_whole_on_resume(tiny_path: Path) -> None:
    run, model = TrainConfig(**BASE, start="a"), models.load(tiny_path)
    whole = resumed_options(run, {"start": os.path.abspath("a")}, model)
    assert whole == resumed_options(run, {}, model)
    with pytest.raises(FeatherbackError, match=r"other options: --from was a, not b\. Use"):
        resumed_options(run, {"start": "b"}, model)
    with pytest.raises(FeatherbackError, match=r"other options: --from was a, not none\. Use"):
        resumed_options(run, {"start": None}, model)
    plain = TrainConfig(**BASE)
    assert resumed_options(plain, {"start": None}, model) == resumed_options(plain, {}, model)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("96MB", 96_000_000),
        ("1.5 GB", 1_500_000_000),
        ("64MiB", 67_108_864),
        ("64", 64_000_000),
        ("1.5", 1_500_000),
        ("1000B", 1000),
        ("2G", 2_000_000_000),
        (" 2gb ", 2_000_000_000),
    ],
)
def test_amounts_of_memory(text: str, amount: int) -> None:
    assert parse.memory(text) == amount


@pytest.mark.parametrize("text", ["", "MB", "96XB", "-1MB", "a lot", "96000000"])
def test_what_is_no_amount_of_memory(text: str) -> None:
    with pytest.raises(FeatherbackError, match="96MB"):
        parse.memory(text)


def test_annotations_are_evaluated_once_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are text, and evaluating them for every field's check took most of a short run's preparation."""
    asked: list[type] = []
    evaluate = options.get_type_hints
    monkeypatch.setattr(options, "get_type_hints", lambda kind: asked.append(kind) or evaluate(kind))
    for _ in range(2):
        TrainConfig.of(**BASE)
    assert len(asked) == len(set(asked))
