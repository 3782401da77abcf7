"""The commands end to end on a tiny model."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import featherback as fb
from featherback.engine import kernels
from featherback.infer.decoder import Decoder
from featherback.infer.lookup import GUESSES, Lookup
from featherback.version import __version__
from tests.cli.conftest import Command
from tests.support.budget import least_mb

STEPS = 12
OPTIONS = ("--seq-len", 96, "--rank", 4, "--lr", 1e-2, "--steps", STEPS)


def _featherback(*arguments: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run the command in a separate process, as a user does."""
    command = [sys.executable, "-m", "featherback", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def trained(
    chat_model: Path, messages: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A finished run and what its command printed."""
    out = tmp_path_factory.mktemp("runs") / "run"
    arguments = ("train", chat_model, "--data", messages, "--eval-data", messages, "--out", out, *OPTIONS)
    return out, _featherback(*arguments)


def _record(run: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((run / "run.json").read_text())
    return record


def test_train_shows_what_it_is_about_to_do(
    trained: tuple[Path, subprocess.CompletedProcess[str]], messages: Path
) -> None:
    before, _, after = trained[1].stdout.partition("step  0/12")
    for text in (
        "tiny.gguf: llama, 2 layers",
        f"{messages.name}: 12 examples (messages)",  # its folder as is shorter
        "[It is 0<|im_end|>]",
        "<|im_start|>user",
        "rank 4, alpha 16, on q,k,v,o,gate,up,down",
        "12 steps, mesp, ",
        "(measured here, GFLOP/s: bf16 ",
        "adamw at 0.01 (cosine)",
        f", {kernels.threads()} thread",
    ):
        assert text in before, text
    assert "held-out loss" in after
    assert "step 12/12  loss" in after
    assert "peak memory: footprint" in after
    assert "\x1b" not in trained[1].stdout


def test_train_ends_with_answers_before_and_after(
    command: Command, trained: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    run, done = trained
    end = done.stdout.partition("peak memory")[2].splitlines()
    assert [line.split()[0] for line in end if line][1:7] == 2 * ["expected", "before", "after"]
    next_words = f"next: featherback chat {_record(run)['configuration']['model']} --adapter {run}"
    assert end[-2:] == [f"report: {run / 'report.html'}", next_words]
    again = shutil.copytree(run, tmp_path / "run")
    assert (again / "report.html").read_text().count("<td>before</td>") == 2
    assert command("report", again, "--samples", 3).code == 0
    assert (again / "report.html").read_text().count("<td>before</td>") == 3
    assert _record(again)["samples"][:2] == _record(run)["samples"]


def test_what_is_printed_to_type_next_works(
    command: Command,
    trained: tuple[Path, subprocess.CompletedProcess[str]],
    messages: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`train` and `inspect` print commands; here their placeholders are filled in."""
    run = Path(shutil.copytree(trained[0], tmp_path / "run"))
    lines = [trained[1].stdout.splitlines()[-1].removeprefix("next: ")]
    lines += json.loads(command("inspect", run, "--json").out)["next"]
    assert len(lines) == 4
    for line in lines:
        names = {"notes.jsonl": messages, "another-run": tmp_path / "new"}
        program, *words = (str(names.get(word, word)) for word in shlex.split(line))
        assert program == "featherback"
        monkeypatch.setattr("sys.stdin", io.StringIO("Hello\n"))
        if words[0] == "train":
            words += ["--steps", "1"]
        done = command(*words, *(["--max-tokens", 2] if words[0] == "chat" else []))
        assert done.code == 0, done.err


TEXTS = {
    "poem.txt": "On a dark night, 'kindled' in love; -- with yearnings -- oh, happy chance! " * 3,
    "begins-with-a-dash.txt": "- a\n- list\n- of things that are many and long\n" * 3,
    "a-dash.txt": "-\n\n\n",
    "white.txt": '\n\n   \n  $(rm -rf x) `a` "b" ' * 3,
    "one-word.txt": "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft" * 2,
    "records.jsonl": json.dumps({"text": "A record, with \ttabs and words"}) + "\n",
}


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_printed_after_training_on_text_continues_it(
    command: Command, chat_model: Path, tmp_path: Path, name: str
) -> None:
    """A raw prompt, with the first words of the text."""
    (tmp_path / name).write_text(TEXTS[name])
    run = tmp_path / "run"
    fb.train(chat_model, tmp_path / name, run, steps=1, rank=1, lr=1e-5, progress=False)
    (line, *_) = json.loads(command("inspect", run, "--json").out)["next"]
    program, kind, *words = shlex.split(line)
    assert (program, kind) == ("featherback", "generate")
    assert "--raw" in words
    prompt = words[words.index("--prompt") + 1]
    if name == "a-dash.txt":  # which would be standard input
        assert prompt == "TEXT"
    else:
        assert prompt in " ".join(TEXTS[name].replace(r"\t", " ").split())
    assert command(kind, *words, "--max-tokens", 2).code == 0


def test_train_learns_and_records_it(trained: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    record = _record(trained[0])
    assert record["status"] == "finished"
    assert record["summary"]["final_eval_loss"] < record["summary"]["first_eval_loss"] - 0.1
    assert len((trained[0] / "metrics.jsonl").read_text().splitlines()) == STEPS


def test_evaluate_agrees_with_the_run(
    command: Command, trained: tuple[Path, subprocess.CompletedProcess[str]], chat_model: Path, messages: Path
) -> None:
    record = _record(trained[0])
    summary, compute = record["summary"], record["plan"]["compute"]
    options = ("--data", messages, "--seq-len", 96, "--json")
    base = json.loads(command("evaluate", chat_model, "--compute", compute, *options).out)
    adapted = json.loads(command("evaluate", chat_model, "--adapter", trained[0], *options).out)
    assert base["loss"] == pytest.approx(summary["first_eval_loss"], rel=1e-6)
    assert adapted["loss"] == pytest.approx(summary["final_eval_loss"], rel=1e-6)
    assert base["tokens"] == adapted["tokens"] > 0
    assert adapted["compute"] == compute  # the run's, without being named
    assert "perplexity" in command("evaluate", chat_model, *options[:-1]).out


def test_generate(command: Command, trained: tuple[Path, subprocess.CompletedProcess[str]], chat_model: Path) -> None:
    options = ("--prompt", "What is 3 plus 3?", "--max-tokens", 12)
    base = command("generate", chat_model, *options)
    adapted = command("generate", chat_model, "--adapter", trained[0], *options)
    assert base.code == adapted.code == 0
    assert base.out != adapted.out
    drawn = [command("generate", chat_model, *options, "--temperature", 1, "--seed", seed).out for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_lookup_is_an_option_of_generate(command: Command, chat_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It guesses by default, and the answer is the same without."""
    guesses = list[int]()

    def watched(decoder: Decoder, text: list[int]) -> Lookup:
        guesses.append(decoder.guesses)
        return Lookup(decoder, text)

    monkeypatch.setattr("featherback.infer.generate.Lookup", watched)
    options = ("generate", chat_model, "--prompt", "hello hello hello", "--max-tokens", 60)
    answers = [command(*options, *more) for more in ((), ("--no-lookup",), ("--memory", "least"))]
    assert [answer.code for answer in answers] == [0, 0, 0]
    assert guesses == [GUESSES, 0, 0]
    assert answers[0].out == answers[1].out


def test_chat(command: Command, chat_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n\n/NEW\n \nhello\n/Quit\nnever read\n"))
    outcome = command("chat", chat_model, "--max-tokens", 5, "--temperature", 0)
    assert outcome.code == 0
    first = outcome.out[: len(outcome.out) // 2]
    assert outcome.out == first * 2, "a new conversation begins like the first"


def test_inspect(
    command: Command, trained: tuple[Path, subprocess.CompletedProcess[str]], chat_model: Path, messages: Path
) -> None:
    model = json.loads(command("inspect", chat_model, "--json").out)
    assert (model["architecture"], model["layers"], model["vocabulary"]) == ("llama", 2, 259)
    assert model["end_tokens"] == ["<|endoftext|>", "<|im_end|>"]
    data = json.loads(command("inspect", messages, "--json").out)
    assert (data["examples"], data["kinds"]) == (12, {"messages": 12})
    tokens = json.loads(command("inspect", trained[0] / "tokens" / "train.tokens", "--json").out)
    assert tokens["sequences"] == 12
    run = json.loads(command("inspect", trained[0], "--json").out)
    assert run["status"] == "finished"
    assert run["options"]["rank"] == 4
    shown = command("inspect", messages, "--model", chat_model, "--examples", 2, "--seq-len", 64).out
    assert "[It is 0<|im_end|>]" in shown
    assert "line 2" in shown
    options = ("--model", chat_model, "--examples", 2, "--seq-len", 40, "--cut", "--json")
    samples = json.loads(command("inspect", messages, *options).out)["examples"]
    assert [(s["n_tokens"], s["truncated"]) for s in samples] == [(40, 5), (40, 6)]
    assert [trained for _, trained in samples[0]["runs"]] == [False, True]
    cut = command("inspect", messages, "--model", chat_model, "--examples", 1, "--seq-len", 40, "--cut").out
    assert "5 truncated" in cut
    text = command("inspect", trained[0]).out
    assert "peak_footprint_mb" in text


def test_json_prints_every_event_and_the_steps_are_the_metrics(
    command: Command, chat_model: Path, messages: Path, tmp_path: Path
) -> None:
    arguments = ("train", chat_model, "--data", messages, "--out", tmp_path / "run", *OPTIONS, "--json")
    rows = [json.loads(line) for line in command(*arguments).out.splitlines()]
    assert [row["event"] for row in rows] == ["begin", *["step"] * STEPS, "saved", "sample", "sample", "end"]
    assert rows[-1]["summary"]["steps"] == STEPS
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row for row in rows if row.pop("event") == "step"] == metrics


def test_ctrl_c_saves_and_resume_ends_as_if_it_had_not_been_pressed(
    command: Command, chat_model: Path, messages: Path, tmp_path: Path
) -> None:
    def arguments(out: str) -> list[object]:
        return ["train", chat_model, "--data", messages, "--out", tmp_path / out, *OPTIONS[:-1], 60, "--json"]

    assert command(*arguments("whole")).code == 0
    # The same plan: another planning has other timings, and sums in other tiles.
    again = ["train", "--config", tmp_path / "whole" / "run.yaml", "--out", tmp_path / "parts", "--json"]
    words = [sys.executable, "-m", "featherback", *map(str, again)]
    # It waits for its reader, so it is not finished before the signal, however busy the machine is.
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "pipesize": 4096}
    with subprocess.Popen(words, text=True, **pipes) as process:
        assert process.stdout is not None
        for _ in range(6):  # the beginning, and five steps
            process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume" in err
    assert 5 <= len((tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()) < 60
    assert _record(tmp_path / "parts")["status"] == "interrupted"
    assert command(*arguments("parts"), "--resume").code == 0
    whole, parts = ((tmp_path / out / "adapter_model.safetensors").read_bytes() for out in ("whole", "parts"))
    assert whole == parts


@pytest.mark.full("tokenises 240,000 chats")
def test_a_run_killed_while_its_data_are_tokenised_can_be_started_again(
    chat_model: Path, messages: Path, tmp_path: Path
) -> None:
    data, out = tmp_path / "data.jsonl", tmp_path / "run"
    data.write_bytes(messages.read_bytes() * 20_000)
    arguments = ("train", chat_model, "--data", data, "--out", out, *OPTIONS[:-1])
    all_of_it = (*arguments, 10**6)  # steps that need all the data
    command = [sys.executable, "-m", "featherback", *map(str, all_of_it)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        while not list(out.glob("tokens/.train.tokens.*")):
            assert process.poll() is None, "the data were tokenised before they were seen"
            time.sleep(0.01)
        rival = _featherback(*all_of_it, check=False)
        os.killpg(process.pid, signal.SIGKILL)
    assert rival.returncode == 2
    assert "is being prepared or trained by another process" in rival.stderr
    assert list(out.glob("tokens/.train.tokens.*"))
    assert not (out / "run.json").exists()
    data.write_bytes(messages.read_bytes())
    (out / "thesis.tex").write_text("precious")
    assert "not empty" in _featherback(*arguments, 1, check=False).stderr
    (out / "thesis.tex").unlink()
    _featherback(*arguments, 1)
    assert [path.name for path in (out / "tokens").iterdir()] == ["train.tokens"]


@pytest.mark.full("test_whole_command.py keeps budgets in the default tier")
def test_the_memory_budget_is_kept(chat_model: Path, messages: Path, tmp_path: Path) -> None:
    small, large = (tmp_path / name for name in ("small", "large"))
    arguments = ("train", chat_model, "--data", messages, "--compute", "fp32", *OPTIONS)
    least = least_mb([sys.executable, "-m", "featherback", *map(str, arguments), "--out", str(small)])
    for out, budget in ((small, least), (large, 20 * least)):
        text = _featherback(*arguments, "--out", out, "--memory", f"{budget}MB").stdout
        assert "predicted" in text
        summary = _record(out)["summary"]
        assert summary["peak_rss_mb"] <= budget
    parts, whole = (load_file(out / "adapter_model.safetensors") for out in (small, large))
    for name, values in whole.items():  # tiles of other sizes are summed in another order
        assert np.linalg.norm(parts[name] - values) < 1e-3 * np.linalg.norm(values), f"the plan changes {name}"


def test_a_budget_beyond_the_machine_is_said(
    command: Command, chat_model: Path, messages: Path, tmp_path: Path
) -> None:
    arguments = ("train", chat_model, "--data", messages, "--out", tmp_path / "run", *OPTIONS[:-1], 1)
    text = command(*arguments, "--memory", "1000000GB").out
    said = r"the budget is more than the \d+ MB that a process can have here; the plan stays within this limit"
    assert re.search(said, text)


@pytest.mark.full("three whole commands")
def test_the_threads_named_are_those_that_train(chat_model: Path, messages: Path, tmp_path: Path) -> None:
    arguments = ("train", chat_model, "--data", messages, "--out", tmp_path / "run", *OPTIONS[:-1])
    first = _featherback(*arguments, 1, "--threads", 2, "--keep-checkpoints").stdout
    resumed = [_featherback(*arguments, 2, "--threads", 1, "--resume").stdout for _ in range(2)]
    assert re.search(r"^kernels .*, 2 threads$", first, re.MULTILINE)
    for text in resumed:  # the second time the plan stays, and nothing is measured before it is shown
        assert re.search(r"^kernels .*, 1 thread$", text, re.MULTILINE)


def test_help_and_version(command: Command) -> None:
    assert command("--version").out.strip() == f"featherback {__version__}"
    text = command("--help").out
    for name in ("demo", "fetch", "train", "evaluate", "generate", "chat", "inspect"):
        assert name in text
        assert command(name, "--help").code == 0
    assert command("train").code == 2
    assert command("nonsense").code == 2
    assert command("train", "--learning-rate", "1e-3").code == 2


def test_a_model_by_a_name_that_was_not_fetched(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FEATHERBACK_CACHE", str(tmp_path))
    outcome = command("inspect", "smollm2-135m")
    assert outcome.code == 2
    assert "featherback fetch smollm2-135m" in outcome.err
