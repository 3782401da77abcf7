"""The command line has the options that TrainConfig, optimizers and methods declare, and passes them on."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from featherback import methods
from featherback.core.options import described, flags
from featherback.errors import FeatherbackError
from featherback.runs.config import CHOICES, PANELS, TrainConfig
from tests.cli.conftest import Command


@pytest.fixture
def help_of(command: Command, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A command's whole help: flag -> the text that describes it."""
    monkeypatch.setenv("COLUMNS", "80")

    def read(name: str) -> dict[str, str]:
        text = command(name, "--help-all").out
        starts = [(match[1], match.start()) for match in re.finditer(r"^  (--[\w-]+)", text, re.MULTILINE)]
        ends = [start for _, start in starts[1:]] + [len(text)]
        return {
            flag: " ".join(text[start:end].partition("\n\n")[0].split())
            for (flag, start), end in zip(starts, ends, strict=True)
        }

    return read


def test_train_has_every_field_and_every_own_option(help_of: Any) -> None:
    shown = help_of("train")
    for name, about in described(TrainConfig).items():
        flag = flags(TrainConfig, name)[0]
        assert about.meaning.rstrip(".") in shown[flag]
        assert all(choice in shown[flag] for choice in about.choices)
        for alias in about.aliases:
            assert alias in shown[flag]
    for own in CHOICES:
        for name, kinds in own.by_option().items():
            for kind in kinds.values():
                assert described(kind)[name].meaning in shown[flags(kind, name)[0]]
    assert all(name in shown["--method"] for name in methods.METHODS.names)
    assert "Default: by model size." in shown["--lr"]
    assert "Default: 0.999; lion: 0.99." in shown["--beta2"]
    assert "Only with --method mezo or sparse_mezo. Default: 0.01 (0.001 with --train full)." in shown["--epsilon"]
    assert "Default: 8." in shown["--rank"]
    assert "Default: 0.0." in shown["--weight-decay"]
    assert "Default" not in shown["--out"]
    assert "Default" not in shown["--cut"]


def test_plan_describes_its_options_as_train_does(help_of: Any) -> None:
    plan, train = help_of("plan"), help_of("train")
    for name in ("memory", "rank", "targets", "seq_len", "batch_size", "optimizer", "compute", "threads"):
        flag = flags(TrainConfig, name)[0]
        assert plan[flag] == train[flag]
    for name, kinds in methods.OPTIONS.by_option().items():
        for kind in kinds.values():
            flag = flags(kind, name)[0]
            assert described(kind)[name].meaning in plan[flag]
            assert plan[flag] == train[flag]


def test_every_panel_has_its_options_and_no_others() -> None:
    assert TrainConfig.__bases__ == PANELS
    named = [name for panel in PANELS for name in described(panel)]
    assert sorted([*named, "out"]) == sorted(described(TrainConfig))


def test_own_options_reach_the_configuration(
    command: Command, chat_model: Path, messages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[TrainConfig] = []

    def new_run(config: TrainConfig, *_: object) -> None:
        asked.append(config)
        raise FeatherbackError("Enough.")

    monkeypatch.setattr("featherback.runs.new_run.new_run", new_run)
    arguments = ("train", chat_model, "--data", messages, "--out", tmp_path / "run", "--memory", "96MB")
    command(*arguments, "--beta1", 0.8, "--weight-decay", 0.1, "--lr", 1e-3, "--targets", "q,v")
    command(*arguments, "--optimizer", "sgd")
    command(*arguments, "--method", "mezo", "--epsilon", 1e-3, "--directions", 4, "--eps", 1e-6)
    first, second, third = asked
    assert first.optimizer_options == {"beta1": 0.8, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1}
    assert (first.learning_rate, first.memory, first.targets) == (1e-3, 96_000_000, ("q_proj", "v_proj"))
    assert second.optimizer_options == {"weight_decay": 0.0}
    assert (first.method_options, third.method_options) == (
        {"keep_precision": "exact"},
        {"epsilon": 1e-3, "directions": 4},
    )
    assert third.optimizer_options["eps"] == 1e-6
    assert second == TrainConfig(
        model=str(chat_model), data=str(messages), out=str(tmp_path / "run"), memory=96_000_000, optimizer="sgd"
    )


def test_the_list_of_commands_loads_no_arithmetic() -> None:
    code = "import sys\nfrom featherback.cli.app import run\nrun(['--help'])\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert "featherback.cli.train" in loaded
    assert not loaded & {"numpy", "tokenizers", "featherback._native", "featherback.runs.config"}
