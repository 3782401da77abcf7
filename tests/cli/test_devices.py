"""`--device`: whole commands on PyTorch's CPU device, and what is refused before anything is computed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.runs.runs import PATIENCE
from tests.support import tiers

pytest.importorskip("torch")
DEVICE = ("--device", "cpu-torch")


def _words(model: Path, data: Path, out: Path, *more: object) -> list[object]:
    return ["train", model, "--data", data, "--out", out, "--seq-len", 64, "--samples", 0, *more]


def _losses(run: Path) -> list[float]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [found["loss"] for found in map(json.loads, lines) if "loss" in found]


def test_a_run_on_a_device_learns_what_a_run_on_the_cpu_learns(
    command: Command, chat_model: Path, messages: Path, tmp_path: Path
) -> None:
    common = ("--steps", 3, "--compute", "fp32")
    code, out, err = command(*_words(chat_model, messages, tmp_path / "card", *common, *DEVICE))
    assert code == 0, err
    assert "device    cpu-torch, of which up to" in out
    assert "of the device's memory predicted" in out
    assert json.loads((tmp_path / "card" / "run.json").read_text())["configuration"]["device"] == "cpu-torch"
    assert command(*_words(chat_model, messages, tmp_path / "cpu", *common))[0] == 0
    found, wanted = _losses(tmp_path / "card"), _losses(tmp_path / "cpu")
    assert len(found) == 3
    assert found == pytest.approx(wanted, rel=1e-4)


def test_a_resumed_run_ends_with_the_same_bits(
    command: Command, chat_model: Path, messages: Path, tmp_path: Path
) -> None:
    """On the run's device, which is recorded. Another device is refused."""
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    common = ("--lora-dropout", 0.1, "--schedule", "constant", "--keep-checkpoints", *DEVICE)
    code, _, err = command(*_words(chat_model, messages, whole, "--steps", 4, *common))
    assert code == 0, err
    assert command(*_words(chat_model, messages, halves, "--steps", 2, *common))[0] == 0
    before = _adapter(halves)
    code, _, err = command("train", chat_model, "--out", halves, "--resume", "--steps", 4, "--device", "cpu")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "--device was cpu-torch, not cpu. Use the options of the run, or start a new run." in err
    code, _, err = command("train", chat_model, "--out", halves, "--resume", "--steps", 4)
    assert code == 0, err
    assert _adapter(halves) == _adapter(whole) != before


def _adapter(run: Path) -> bytes:
    return (run / "adapter_model.safetensors").read_bytes()


def test_evaluate_and_generate_on_a_device(command: Command, chat_model: Path, messages: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert command(*_words(chat_model, messages, run, "--steps", 2, "--compute", "fp32", *DEVICE))[0] == 0
    answers = {}
    for device in ((), DEVICE, (*DEVICE, "--vram", "40MB")):
        code, out, err = command(
            "evaluate", chat_model, "--data", messages, "--adapter", run, "--json", *device
        )  # fmt: skip
        assert code == 0, err
        loss = json.loads(out)["loss"]
        code, text, err = command(
            "generate", chat_model, "--adapter", run, "--prompt", "What?", "--max-tokens", 8, "--decode", "exact",
            *device,
        )  # fmt: skip
        assert code == 0, err
        answers[device] = loss, text
    (loss, text), *others = answers.values()
    for found, said in others:
        assert found == pytest.approx(loss, rel=1e-4)
        assert said == text
    code, _, err = command("generate", chat_model, "--prompt", "x", *DEVICE, "--kv", "q8_0")
    assert (code, err) == (2, "error: --kv q8_0 does not work with --device cpu-torch. Remove --kv.\n")
    code, _, err = command("generate", chat_model, "--prompt", "x", *DEVICE, "--vram", "2MB")
    assert code == 2
    assert "Generating needs at least --vram" in err


IMPORTS = """
import os, sys
def seen(event, arguments):
    if event == "import" and arguments[0].partition(".")[0] == "torch":
        os.write(LOG, b"torch")
LOG = os.open(sys.argv.pop(), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
sys.addaudithook(seen)
from featherback.cli import main
main()
"""


def _imports(words: list[object], log: Path) -> str:
    """Run a command in processes of its own, which hand over the run's lock, and return what they log."""
    program = [sys.executable, "-c", IMPORTS, *map(str, words), str(log)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode in (0, 3), done.stderr  # one or two steps may not help
    return log.read_text()


RECORDS: dict[str, Callable[[int], dict[str, object]]] = {
    "dpo": lambda i: {"prompt": f"What is {i}?", "chosen": f"It is {i}.", "rejected": "No idea."},
    "classify": lambda i: {"text": f"number {i}", "label": "even" if i % 2 == 0 else "odd"},
    "next_token": lambda i: {"prompt": f"What is {i}?", "completion": f"It is {i}."},
}


@pytest.mark.parametrize(
    ("objective", "options"),
    tiers.some(
        [
            ("dpo", ()),
            ("next_token", ("--teacher", "MODEL", "--teacher-top-k", 4)),
            ("classify", ()),
            ("next_token", ("--adapter", "dora", "--optimizer", "adamw8bit")),
            ("next_token", ("--method", "mezo")),
            ("next_token", ("--keep-precision", "8bit", "--compute", "bf16")),
        ],
        1,
    ),
    ids=str,
)
def test_objectives_and_passes_before_training(
    command: Command, chat_model: Path, tmp_path: Path, objective: str, options: tuple[object, ...]
) -> None:
    data, run = tmp_path / "data.jsonl", tmp_path / "run"
    data.write_text("".join(json.dumps(RECORDS[objective](i)) + "\n" for i in range(16)))
    more = [chat_model if each == "MODEL" else each for each in options]
    words = _words(chat_model, data, run, "--steps", 2, "--objective", objective, *more, *DEVICE)
    assert "torch" in _imports(words, tmp_path / "log")
    assert len(_losses(run)) == 2
    assert "device: cpu-torch" in command("inspect", run)[1]


def test_a_plan_knows_the_device(command: Command, chat_model: Path) -> None:
    words = ("plan", chat_model, "--seq-len", 64, *DEVICE)
    code, out, err = command(*words, "--vram", "40MB")
    assert code == 0, err
    assert "on cpu-torch within 40 MB" in out
    assert "least --vram" in out
    assert "Qwen2.5" not in out
    found = json.loads(command(*words, "--vram", "40MB", "--json")[1])["methods"]
    plans = {each["method"]: each["plan"] for each in found}
    assert 0 < plans["mesp"]["predicted_vram_mb"] <= 40
    assert plans["mesp"]["predicted_rss_mb"] is None
    least = max(each["least_memory_mb"] for each in found)
    found = json.loads(command(*words, "--vram", f"{least}MB", "--json")[1])["methods"]
    assert all(each["plan"] is not None for each in found)
    code, out, err = command(*words, "--all")
    assert (code, err) == (2, "error: --all shows plans for the CPU. Remove --all, or remove --device.\n")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--device", "coda"), "Did you mean `cuda`?"),
        (("--vram", "1GB"), "Add --device with one of cuda, xpu, mps, cpu-torch, or remove --vram."),
        ((*DEVICE, "--memory", "1GB"), "Use --vram to limit the device's memory, or remove --memory."),
        ((*DEVICE, "--compute", "int16"), "--device cpu-torch does not support --compute int16. Use --compute bf16"),
        ((*DEVICE, "--train", "full"), "--device cpu-torch trains adapters only. Remove --train full"),
        ((*DEVICE, "--vram", "1MB"), "on cpu-torch, and 1 MB are allowed or free; a smaller --seq-len or --rank"),
        ((*DEVICE, "--vram", "9000GB"), "that are free on cpu-torch. Use at most that."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_a_device_cannot_do_is_one_sentence(
    command: Command, chat_model: Path, messages: Path, tmp_path: Path, options: tuple[str, ...], says: str
) -> None:
    code, _, err = command(*_words(chat_model, messages, tmp_path / "run", "--steps", 1, *options))
    assert code == 2
    assert len(err.splitlines()) == 1, err
    assert says in err
    assert not (tmp_path / "run").exists()


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "torch" else find(name, *more)
from featherback.cli import main
main()
"""


def test_a_device_without_torch_is_one_sentence(chat_model: Path, messages: Path, tmp_path: Path) -> None:
    words = map(str, _words(chat_model, messages, tmp_path / "run", "--device", "cuda"))
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *words], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 2
    assert done.stderr == (
        "error: --device cuda needs PyTorch, which is not installed. Install it with `pip install "
        '"featherback[torch]"`, or remove --device.\n'
    )


def test_training_on_the_cpu_imports_no_torch(chat_model: Path, messages: Path, tmp_path: Path) -> None:
    """In none of the command's processes."""
    assert not _imports(_words(chat_model, messages, tmp_path / "run", "--steps", 1), tmp_path / "log")
