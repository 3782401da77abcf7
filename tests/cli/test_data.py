"""Data in every format, the report before training, and the default sequence length."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import featherback as fb
from featherback import models
from featherback.cli.preamble import print_preamble, print_sample
from featherback.data.preview import Preview
from featherback.data.token_file import TokenFile
from featherback.errors import FeatherbackError
from featherback.runs.config import TrainConfig
from featherback.runs.preparation import prepare_run
from featherback.runs.rehearsal import rehearsed_baseline
from featherback.runs.run_directory import RunDirectory
from tests.cli.conftest import Command, Outcome
from tests.data.test_formats import ROWS, WRITERS
from tests.data.test_readers import read as read_examples
from tests.support.budget import least_mb
from tests.support.tiny_chat import write_messages

FEATHERBACK = [sys.executable, "-m", "featherback"]


def _alone(*arguments: object) -> Outcome:
    """The outcome of a command in a process of its own."""
    done = subprocess.run([*FEATHERBACK, *map(str, arguments)], capture_output=True, text=True, check=False)
    return Outcome(done.returncode, done.stdout, done.stderr)


def _chats(path: Path, *sizes: int) -> Path:
    """Write one chat per answer length in letters. Template and question add about thirty tokens."""
    rows = (
        {"messages": [{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": "a" * size}]}
        for i, size in enumerate(sizes)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def formats(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same chats in every format for records, and a folder of texts."""
    folder = tmp_path_factory.mktemp("formats")
    for name, write in WRITERS.items():
        write(folder / name, ROWS["messages"])
    (folder / "notes").mkdir()
    (folder / "notes" / "a.md").write_text("Once upon a time")
    return {name: folder / name for name in (*WRITERS, "notes")}


@pytest.mark.parametrize("name", [*WRITERS, "notes"])
def test_a_format_is_inspected_and_evaluated(
    command: Command, chat_model: Path, formats: dict[str, Path], name: str
) -> None:
    facts = json.loads(command("inspect", formats[name], "--json").out)
    kinds = {"text": 1} if name == "notes" else {"messages": 2}
    assert (facts["examples"], facts["kinds"]) == (sum(kinds.values()), kinds)
    shown = json.loads(command("inspect", formats[name], "--model", chat_model, "--json").out)
    assert shown["report"]["shapes"] == kinds
    measured = json.loads(command("evaluate", chat_model, "--data", formats[name], "--json").out)
    assert measured["tokens"] == shown["report"]["supervised_tokens"] > 10


def test_a_run_trains_on_all_of_them_and_standard_input(
    command: Command, chat_model: Path, formats: dict[str, Path], tmp_path: Path
) -> None:
    named = [word for path in formats.values() for word in ("--data", path)]
    out = tmp_path / "run"
    arguments = ("train", chat_model, *named, "--data", "-", "--out", out, "--epochs", 1, "--rank", 2,
                 "--keep-checkpoints")  # fmt: skip
    done = command(*arguments, given=formats["data.jsonl"].read_text())
    assert done.code == 0, done.err
    run = RunDirectory.open(out)
    assert run.record.data["train"].shapes == {"messages": 2 * (len(WRITERS) + 1), "text": 1}
    assert f"standard input: 13 examples (messages: 12, text: 1), {run.record.data['train'].tokens} tokens" in done.out
    assert run.config.data == (*map(str, formats.values()), "-")
    assert run.record.data["train"].duplicates == 11  # all twelve chats are the same
    assert "11 of 13 examples are copies of others" in done.out
    again = command("train", chat_model, "--out", out, "--resume", "--epochs", 2)
    assert again.code == 0, again.err


def test_a_folder_of_records_is_not_data_but_what_is_in_it(command: Command, tmp_path: Path) -> None:
    data = _chats(tmp_path / "d.jsonl", 10)
    said = command("inspect", tmp_path)
    assert said.code == 2
    assert f"in a folder only text files are read. Pass the files instead: --data {data}.\n" in said.err
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "e f.csv").write_text("text\na\n")
    said = command("inspect", tmp_path)
    named = f"--data {tmp_path / 'a.txt'} --data {data} --data '{tmp_path / 'e f.csv'}'"
    assert said.err.endswith(f"Pass the files instead: {named}.\n")


def test_model_and_data_in_each_others_place(command: Command, chat_model: Path, tmp_path: Path) -> None:
    data = _chats(tmp_path / "d.jsonl", 10)
    run = tmp_path / "run"
    for name, out, kept in (("train", ("--out", run), f" --out {run}"), ("evaluate", (), "")):
        said = command(name, data, "--data", chat_model, *out)
        meant = f"featherback {name} {chat_model} --data {data}{kept}"
        assert (said.code, said.err) == (2, f"error: MODEL and --data seem to be swapped. Did you mean `{meant}`?\n")
    said = command("train", data, "--data", "smollm2-135m", "--out", run)
    assert said.err.endswith(f"`featherback train smollm2-135m --data {data} --out {run}`?\n")
    assert not (tmp_path / "run").exists()


def test_what_is_not_read_of_a_folder_is_said(command: Command, chat_model: Path, tmp_path: Path) -> None:
    for name, text in (("a.md", "Buy milk."), ("b.PDF", "%PDF"), ("c.rtf", "{"), (".hidden", "x")):
        (tmp_path / name).write_text(text)
    first = f"2 files in {tmp_path} are not read (the first: {tmp_path / 'b.PDF'}). In a folder, only "
    for more in ((), ("--model", chat_model)):
        if more:
            (tmp_path / "c.rtf").unlink()
            first = f"{tmp_path / 'b.PDF'} is not read. In a folder, only "
        said = command("inspect", tmp_path, *more)
        assert said.code == 0
        known = ".txt, .md, .markdown, .docx, .epub, .html, .htm, .xhtml, .odt, .srt or .vtt"
        assert f"{first}files whose names end in {known} are read." in " ".join(said.out.split())


def test_standard_input_can_be_inspected(command: Command, chat_model: Path, formats: dict[str, Path]) -> None:
    text = formats["data.json"].read_text(encoding="utf-8")
    done = command("inspect", "-", "--model", chat_model, "--json", given=text)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["report"]["examples"] == len(found["examples"]) == 2
    assert found["examples"][0]["where"].startswith("standard input, line 2")
    unanswered = '{"messages": [{"role": "user", "content": "a"}]}'
    done = command("evaluate", chat_model, "--data", "-", given=unanswered)
    assert "error: standard input has no supervised tokens: " in done.err
    done = command("evaluate", chat_model, "--data", "-", given="")
    assert (done.code, done.err) == (2, "error: Standard input is empty.\n")


@pytest.mark.parametrize("option", [("--me", "Ann"), ("--table", "sheet=A")])
def test_an_option_that_standard_input_has_no_use_for_is_an_error(
    command: Command, chat_model: Path, tmp_path: Path, option: tuple[str, str]
) -> None:
    words = ("train", chat_model, "--data", "-", "--out", tmp_path / "run", *option)
    done = command(*words, given='{"prompt": "a", "completion": "b"}\n' * 3)
    assert done.code == 2
    assert f"{option[0]} {option[1]}" in done.err
    assert not (tmp_path / "run").exists()


def test_files_are_utf_8_in_any_locale(chat_model: Path, tmp_path: Path) -> None:
    """Also where Python would read and name files in ASCII."""
    data = tmp_path / "données.jsonl"
    data.write_text('{"prompt": "日本 Grüße", "completion": "👍 ß"}\n', encoding="utf-8")
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "featherback", "inspect", data, "--model", chat_model, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **plain})
    [example] = json.loads(done.stdout)["examples"]
    assert example["runs"][:2] == [
        ["<|im_start|>user\n日本 Grüße<|im_end|>\n<|im_start|>assistant\n", False],
        ["👍 ß<|im_end|>", True],
    ]


# --- the length that data need ---


def test_long_chats_are_trained_whole(chat_model: Path, tmp_path: Path) -> None:
    """Regression: they were truncated at 256 tokens."""
    data, held_out = _chats(tmp_path / "d.jsonl", 10, 300, 20), _chats(tmp_path / "e.jsonl", 400)
    out = tmp_path / "run"
    arguments = ("train", chat_model, "--data", data, "--eval-data", held_out, "--out", out, "--steps", 2, "--rank", 2)
    done = _alone(*arguments, "--memory", "200MB", "--keep-checkpoints")
    assert done.code == 0, done.err
    run = RunDirectory.open(out)
    longest = run.record.data["eval"].longest
    assert longest > 400
    assert run.config.seq_len == longest
    assert run.plan.tokens == longest
    assert TokenFile(run.tokens / "eval.tokens").max_length == longest
    assert "up to    512 tokens" in done.out
    assert run.record.summary.peak_rss_mb < 200
    again = _alone("train", chat_model, "--out", out, "--resume", "--steps", 3)
    assert again.code == 0, again.err
    assert RunDirectory.open(out).plan == run.plan


def _one_step(model: Path, data: Path, out: Path) -> tuple[object, ...]:
    """The arguments of a short training run."""
    return ("train", model, "--data", data, "--out", out, "--steps", 1, "--rank", 2, "--compute", "fp32")


@pytest.mark.full("whole commands; test_long_chats_are_trained_whole stands for them")
def test_short_chats_change_nothing(command: Command, chat_model: Path, tmp_path: Path) -> None:
    data, out = _chats(tmp_path / "d.jsonl", 10, 20), tmp_path / "run"
    for name, named in (("a", ()), ("b", ("--seq-len", 256))):
        assert command(*_one_step(chat_model, data, out / name), *named).code == 0
    ours, theirs = RunDirectory.open(out / "a"), RunDirectory.open(out / "b")
    assert ours.config.seq_len == theirs.config.seq_len == 256
    assert (out / "a" / "adapter_model.safetensors").read_bytes() == (
        out / "b" / "adapter_model.safetensors"
    ).read_bytes()


def test_chats_beyond_the_model_are_refused_or_cut(command: Command, chat_model: Path, tmp_path: Path) -> None:
    data, out = _chats(tmp_path / "d.jsonl", 10, 700, 900), tmp_path / "run"
    says = (
        f"2 of 3 examples in {data} are longer than the context length of tiny.gguf, 512 tokens (the longest has 9",
        "--cut cuts them at the end.",
    )
    for arguments in (
        ("train", chat_model, "--data", data, "--out", out),
        ("evaluate", chat_model, "--data", data),
        ("inspect", data, "--model", chat_model),
    ):
        code, _, err = command(*arguments)
        assert code == 2
        assert len(err.splitlines()) == 1
        for text in says:
            assert text in err
    assert not out.exists()
    measured = json.loads(command("evaluate", chat_model, "--data", data, "--cut", "--json").out)
    assert (measured["examples"], measured["truncated"], measured["dropped"]) == (3, 2, 0)
    done = command("train", chat_model, "--data", data, "--out", out, "--cut", "--epochs", 1, "--rank", 2)
    assert done.code == 0, done.err
    assert "2 of 3 examples are longer than 512 tokens and were cut" in " ".join(done.out.split())
    assert TokenFile(RunDirectory.open(out).tokens / "train.tokens").max_length == 512


@pytest.mark.full("whole commands; test_long_chats_are_trained_whole stands for them")
def test_what_a_budget_has_no_room_for_is_refused_with_one_that_has(chat_model: Path, tmp_path: Path) -> None:
    """Each command is a process of its own: a budget counts all that its process holds."""
    data, out = _chats(tmp_path / "d.jsonl", 10, 440), tmp_path / "run"
    arguments = (*_one_step(chat_model, data, out), "--batch-size", 400)
    budget = least_mb([*FEATHERBACK, *map(str, arguments), "--seq-len", "256", "--cut"])
    done = _alone(*arguments, "--memory", f"{budget + 1}MB")
    assert done.code == 2
    assert f"tokens that fit in --memory {budget + 1}MB (the longest has 4" in done.err
    assert not out.exists()
    needed = done.err.partition("): --memory ")[2].partition(" keeps them whole")[0]
    assert _alone(*arguments, "--memory", needed).code == 0


def test_a_budget_in_which_not_even_short_chats_fit(chat_model: Path, tmp_path: Path) -> None:
    """The error names the budget, and no length that would fit."""
    data = _chats(tmp_path / "d.jsonl", 10, 440)
    with pytest.raises(FeatherbackError, match="Training does not fit in 9MB: these options need at least --memory "):
        fb.train(chat_model, data, tmp_path / "run", memory="9MB", progress=False)


# --- the report ---


@pytest.mark.full("whole commands; test_long_chats_are_trained_whole stands for them")
def test_a_chat_of_which_nothing_is_left_does_not_decide_the_length(
    command: Command, chat_model: Path, tmp_path: Path
) -> None:
    """The question of the long chat fits completely, and its answer not at all."""
    data, out = _chats(tmp_path / "d.jsonl", 10, 12), tmp_path / "run"
    long = [{"role": "user", "content": 900 * "q"}, {"role": "assistant", "content": "a"}]
    data.write_text(data.read_text() + json.dumps({"messages": long}) + "\n")
    done = command("train", chat_model, "--data", data, "--out", out, "--cut", "--steps", 1, "--rank", 2)
    assert done.code == 0, done.err
    said = " ".join(done.out.split())
    assert "1 of 3 examples have no supervised tokens and were skipped." in said
    assert "None" not in said
    assert RunDirectory.open(out).config.seq_len == 256
    shown = command("inspect", data, "--model", chat_model, "--cut").out
    assert "512 tokens, 0 trained" in shown
    assert max(map(len, shown.splitlines())) < 600
    assert "characters more)" in shown


def test_a_long_example_is_shown_where_it_is_trained(capsys: pytest.CaptureFixture[str]) -> None:
    """Regression: with a long system message, only that message was shown."""

    def shown(before: int, after: int) -> list[str]:
        asked, answer = "".join(f"asked {i}\n" for i in range(before)), "\n".join(map(str, range(after)))
        print_sample(Preview("d.jsonl, line 1", [(asked, False), (answer, True), ("\nnext\n", False)], 9, 9, 0))
        return [line.removeprefix("  | ") for line in capsys.readouterr().out.splitlines()[1:]]

    assert shown(30, 2) == [*("asked 0", "asked 1", "asked 2", "... 26 lines more", "asked 29", "[0]", "[1]", "next")]
    assert shown(30, 30)[3:] == ["... 26 lines more", "asked 29", *(f"[{i}]" for i in range(8)), "... 23 lines more"]
    assert shown(3, 30)[3:] == [*(f"[{i}]" for i in range(9)), "... 22 lines more"]
    assert shown(3, 2) == ["asked 0", "asked 1", "asked 2", "[0]", "[1]", "next"]
    assert len(shown(10, 1)) == 12  # no more than there is room for
    assert shown(30, 1)[-3:] == ["asked 29", "[0]", "next"]
    assert len(shown(3, 9)) == len(shown(3, 8)) + 1 == 13  # "1 lines more" takes as much room as the line


def test_a_dry_run_shows_the_data_and_leaves_nothing(command: Command, chat_model: Path, tmp_path: Path) -> None:
    data, out = _chats(tmp_path / "d.jsonl", 10, 300, 10, 0), tmp_path / "run"
    arguments = ("train", chat_model, "--data", data, "--out", out, "--dry-run")
    done = command(*arguments)
    assert done.code == 0, done.err
    assert not out.exists()
    for text in (
        "d.jsonl: 4 examples (messages), ",
        "up to     64 tokens",
        "up to    512 tokens",
        "have an empty answer",
        "held-out  none: there are too few",
        "[",
        "predicted",
        "dry run: nothing was trained",
    ):
        assert text in done.out
    assert "step 1" not in done.out
    shown = json.loads(command(*arguments, "--json").out)
    assert shown["data"]["train"]["examples"] == 4
    assert shown["plan"]["tokens"] == shown["data"]["train"]["longest"]
    inspected = json.loads(command("inspect", data, "--model", chat_model, "--json").out)["report"]
    for name in ("seconds", "peak_rss_mb"):
        inspected.pop(name)
        shown["data"]["train"].pop(name)
    assert inspected == shown["data"]["train"]
    out.mkdir()
    assert command(*arguments).code == 0
    assert list(out.iterdir()) == []


def test_a_data_file_that_is_not_there_is_no_model(command: Command, tmp_path: Path) -> None:
    said = command("inspect", tmp_path / "typo.csv")
    assert (said.code, said.err) == (2, f"error: The data file {tmp_path / 'typo.csv'} does not exist.\n")


def test_who_is_not_trained_is_said(command: Command, chat_model: Path, tmp_path: Path) -> None:
    """Several role names mean the assistant. Other roles are not trained."""
    data = tmp_path / "d.jsonl"
    roles = ("user", "bot", "critic", "model", "critic", "assistant")
    turns = [{"role": role, "content": f"{role} {i}"} for i, role in enumerate(roles)]
    data.write_text(json.dumps({"messages": turns}) + "\n")
    said = command("inspect", data, "--model", chat_model)
    assert said.code == 0, said.err
    for answer in ("[bot 1<|im_end|>]", "[model 3<|im_end|>]", "[assistant 5<|im_end|>]"):
        assert answer in said.out
    assert "[critic" not in said.out
    note = "2 messages have the role 'critic' and will not be trained on: training uses only messages of 'assistant'."
    assert note in " ".join(said.out.split())


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("name", ["d.csv", "d.txt", "d.jsonl"])
def test_utf_16_is_read(command: Command, tmp_path: Path, name: str, encoding: str) -> None:
    data = tmp_path / name
    text = '{"text": "a\u20ac"}\n' if name == "d.jsonl" else "text\na\u20ac\n"
    data.write_bytes(f"\ufeff{text}".encode(encoding))
    said = command("inspect", data)
    assert (said.code, said.err) == (0, "")


QUESTIONS = ("prompt", "instruction", "question", "questions", "input", "q", "user")


@pytest.mark.parametrize(
    ("columns", "read"),
    [
        ("prompt,answer", {"completion": "answer"}),
        ("question,answer", {"prompt": "question", "completion": "answer"}),
        ("answer,question", {"prompt": "question", "completion": "answer"}),
        ("input,output", {"prompt": "input", "completion": "output"}),
        ("instruction,response", {"output": "response"}),
        ("instruction,context,response", {"output": "response", "input": "context"}),
        ("ID,Prompt,Completion", {"prompt": "Prompt", "completion": "Completion"}),
        ("question, Answer ", {"prompt": "question", "completion": " Answer "}),
        ("Questions,Answers", {"prompt": "Questions", "completion": "Answers"}),
        ("q,a", {"prompt": "q", "completion": "a"}),
        ("user,assistant", {"prompt": "user", "completion": "assistant"}),
        ("question,answer,a", {"prompt": "question", "completion": "answer"}),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_columns_of_usual_names_are_read(
    command: Command, tmp_path: Path, columns: str, read: dict[str, str], kind: str
) -> None:
    """Regression: the error suggested exactly the options that had been used."""
    names = columns.split(",")
    row = {name: f"of {name.strip()}" for name in names}
    data = tmp_path / f"d.{kind}"
    WRITERS[f"data.{kind}"](data, [row])
    [example] = read_examples(data)
    asked = next(name for name in names if name.strip().lower() in QUESTIONS)
    context = "\n\nof context" * ("context" in names)
    assert example.prompt == f"of {asked.strip()}{context}"
    assert example.completion == f"of {read.get('completion', read.get('output', '')).strip()}"
    said = command("inspect", data)
    assert said.code == 0, said.err
    note = " and ".join(f"{column!r} as {key}" for key, column in read.items())
    maps = " ".join(f"--map {key}=COLUMN" for key in read)
    assert f"Reading {note}. To read other columns: {maps}." in " ".join(said.out.split())


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ("prompt,question,answer", "--map prompt=prompt --map completion=answer"),
        ("input,output,response", "--map prompt=input --map completion=output"),
        ("question,context,answer", "--map instruction=question --map output=answer --map input=context"),
        ("question,context,answer", "--map prompt=question --map completion=answer"),
        ("anwser,qeustion", "--map prompt=qeustion --map completion=anwser"),
        ("Customer text,Subject", "--map 'prompt=Customer text' --map completion=Subject"),
    ],
)
def test_columns_that_could_be_several_things_are_refused_with_a_choice(
    command: Command, tmp_path: Path, columns: str, says: str
) -> None:
    data = tmp_path / "d.csv"
    data.write_text(f"{columns}\n{','.join('abc'[: columns.count(',') + 1])}\n")
    said = command("inspect", data)
    assert said.code == 2
    assert says in said.err
    assert "--skip-bad" not in said.err  # every row has these
    if "again" not in says:
        assert command("inspect", data, *shlex.split(says)).code == 0


def test_a_map_that_is_the_wrong_way_round(command: Command, tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("My question,completion\na,b\n")
    said = command("inspect", tmp_path / "d.csv", "--map", "My question=prompt")
    assert said.code == 2
    assert said.err.endswith("--map 'prompt=My question'.\n")


def test_a_mistyped_key_is_not_taken_for_a_map_the_wrong_way_round(command: Command, tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("text,completion\na,b\n")
    said = command("inspect", tmp_path / "d.csv", "--map", "promt=text")
    assert "--map names the unknown key 'promt'; expected one of: anchor, chosen, completion, " in said.err


def test_bad_lines_are_skipped_alike(command: Command, chat_model: Path, tmp_path: Path) -> None:
    data = _chats(tmp_path / "d.jsonl", 10, 20)
    data.write_text(data.read_text() + "{\n")
    for arguments in (
        ("evaluate", chat_model, "--data", data),
        ("inspect", data),
        ("inspect", data, "--model", chat_model),
    ):
        code, _, err = command(*arguments)
        assert code == 2
        assert f"{data}, line 3: not valid JSON" in err
        said = command(*arguments, "--skip-bad").out
        assert "1 record cannot be used and was skipped:" in said
        assert f"{data}, line 3: not valid JSON" in said


def test_what_is_held_out_is_not_counted_as_trained(
    chat_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = str(write_messages(tmp_path / "d.jsonl", 100))
    config = TrainConfig(model=str(chat_model), data=(data,), out=str(tmp_path / "run"), epochs=1, rank=2)
    run = prepare_run(config, baseline=rehearsed_baseline)
    run.release()
    print_preamble(run, models.load(run.config.model))
    rest, held = (TokenFile(run.tokens / f"{name}.tokens") for name in ("train", "eval"))
    shown = capsys.readouterr().out
    counts = f"{rest.n_tokens} tokens without the held-out examples, {rest.n_targets} of them trained"
    assert f"100 examples (messages), {counts}" in shown
    assert f"held-out  5 of the 100 sequences, {held.n_tokens} tokens" in shown
