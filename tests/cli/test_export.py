"""`featherback export`: its output, files and errors; training and decoding from every format."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from featherback import models
from featherback.exports import FORMATS, formats
from featherback.exports.formats import gguf, mlx
from featherback.models.adapter import LoRA, Pair
from featherback.runs.run_directory import RunDirectory
from tests.cli.conftest import Command


@pytest.fixture(scope="module")
def adapter(chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained PEFT adapter of the tiny model, with the name of its base model."""
    folder = tmp_path_factory.mktemp("adapter") / "poet"
    made = LoRA(models.load(chat_model), 4, 8, "q,v,down")
    rng = np.random.default_rng(0)
    made.load_state({name: rng.normal(0, 0.2, shape).astype(np.float32) for name, shape in made.shapes().items()})
    FORMATS["peft"].save(made, folder)
    return folder


@pytest.fixture
def here(adapter: Path, tmp_path: Path) -> Path:
    """The same adapter in a folder where a test may write."""
    return Path(shutil.copytree(adapter, tmp_path / "poet"))


@pytest.mark.parametrize(
    ("to", "name", "start"),
    [
        ("peft", "poet-peft", "python -ic "),
        ("gguf", "poet.gguf", "llama-cli -m "),
        ("mlx", "poet-mlx", "featherback generate "),
        ("merged", "poet-merged.gguf", "featherback generate "),
    ],
)
def test_the_first_line_is_what_to_type_next(
    command: Command, here: Path, chat_model: Path, to: str, name: str, start: str
) -> None:
    done = command("export", here, "--to", to)
    assert done.code == 0, done.err
    first, second, *_ = done.out.splitlines()
    assert first.startswith(start)
    out = here.parent / name
    assert any(str(out) in word for word in shlex.split(first))
    assert second == f"wrote {out}"
    assert out.exists()
    assert not [entry for entry in here.parent.iterdir() if entry.name.startswith(".")]
    if to == "merged":
        assert models.load(out).config.vocab_size == models.load(chat_model).config.vocab_size
        assert "note: 100.00% of the adapter's update survives" in done.out
    else:
        model = models.load(chat_model)
        state, again = (formats.load(model, path).state() for path in (here, out))
        assert all(np.array_equal(state[key], again[key]) for key in state)


def test_what_is_there_is_not_replaced_unless_told(command: Command, here: Path) -> None:
    out = here.parent / "poet.gguf"
    out.write_text("mine")
    refused = command("export", here, "--to", "gguf")
    assert (refused.code, out.read_text()) == (2, "mine")
    assert f"{out} already exists; choose another --out, or replace it with --force." in refused.err
    assert command("export", here, "--to", "gguf", "--force").code == 0
    assert out.read_bytes()[:4] == b"GGUF"
    folder = here.parent / "poet-mlx"
    folder.mkdir()
    (folder / "notes").write_text("mine")
    assert command("export", here, "--to", "mlx").code == 2
    assert command("export", here, "--to", "mlx", "--force").code == 0
    assert (folder / "notes").read_text() == "mine"


def test_what_cannot_be_exported(command: Command, here: Path, chat_model: Path, tmp_path: Path) -> None:
    for arguments, complaint in (
        ((here, "--to", "safetensors"), "--to is 'safetensors'; expected one of: gguf, merged, mlx, "),
        ((here, "--to", "gguf", "--type", "q4_0"), "--type is q4_0; expected one of: f32, f16, bf16."),
        ((here, "--to", "mlx", "--type", "f16"), "--type is f16; this target stores one type only; remove --type."),
        ((here, "--to", "merged", "--type", "q6_k"), "--type is 'q6_k'; expected one of: "),
        ((tmp_path / "none", "--to", "gguf"), "There is no adapter "),
        ((here, "--to", "peft", "--out", here), "is the adapter itself; choose another --out."),
        ((here, "--to", "merged", "--out", chat_model, "--force"), "is the base model itself; choose another --out."),
        ((here, "--to", "gguf", "--out", chat_model, "--force"), "is the base model itself; choose another --out."),
        ((here, "--to", "gguf", "--out", "/", "--force"), "Cannot write /: it is a folder."),
        ((here, "--to", "merged", "--out", ".", "--force"), "Cannot write .: it is a folder."),
        ((here, "--to", "peft", "--out", chat_model / "new"), f"Cannot write to {chat_model}: Not a directory."),
    ):
        done = command("export", *arguments)
        assert done.code == 2
        assert complaint in done.err
    assert models.load(chat_model)


@pytest.mark.parametrize("how", ["file", "folder", "name"])
def test_a_model_in_place_of_an_adapter_is_told_from_one(
    command: Command, chat_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    named: Path = chat_model
    if how == "folder":
        named = tmp_path / "hub model"
        named.mkdir()
        (named / "config.json").write_text("{}")
    elif how == "name":
        known = {"lm:tiny": chat_model}
        monkeypatch.setattr("featherback.models.hub.stores.find", known.get)
    typed = "lm:tiny" if how == "name" else named
    for arguments in (
        ("export", typed, "--to", "gguf"),
        *([] if how == "name" else [("generate", chat_model, "--prompt", "Hi", "--adapter", typed)]),
    ):
        done = command(*arguments)
        assert done.code == 2
        train = f"featherback train {shlex.quote(str(named))} --data DATA --out RUN"
        assert f"{named} is a model, not an adapter; train an adapter with `{train}`, then name RUN here." in done.err


def test_the_model_is_asked_for_where_it_is_not_told(command: Command, here: Path, chat_model: Path) -> None:
    config = json.loads((here / "adapter_config.json").read_text())
    (here / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": "some/one"}))
    refused = command("export", here, "--to", "gguf")
    assert refused.code == 2
    assert (
        f"{here} was trained on 'some/one', which is not on this machine. If the model is elsewhere, add --model PATH."
        in refused.err
    )
    (here / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": "a" * 5000}))
    assert (
        ", which is not on this machine. If the model is elsewhere, add --model PATH."
        in command("export", here, "--to", "gguf").err
    )
    assert command("export", here, "--to", "gguf", "--model", chat_model).code == 0
    lone = command("export", here.parent / "poet.gguf", "--to", "mlx")
    assert "was trained on 'tiny.gguf', which is not on this machine" in lone.err


@pytest.mark.parametrize(("there", "to"), [("peft", "mlx"), ("mlx", "peft")])
def test_two_adapters_in_one_folder_are_refused(
    command: Command, here: Path, chat_model: Path, there: str, to: str
) -> None:
    out = here.parent / "there"
    FORMATS[there].save(LoRA(models.load(chat_model), 3), out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    refused = command("export", here, "--to", to, "--out", out, "--force")
    assert refused.code == 2
    assert f"{out} holds an adapter in another format (" in refused.err
    assert "which this one would damage; choose another --out." in refused.err
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert command("export", here, "--to", there, "--out", out, "--force").code == 0


@pytest.mark.parametrize("to", ["merged", "gguf", "mlx", "ollama"])
def test_what_a_killed_export_left_goes_before_the_room_is_looked_at(
    command: Command, here: Path, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kill the export while it writes, then repeat it."""
    out = here.parent / "new"
    code = (
        "import os, signal, sys, featherback.core.files as files\n"
        "files.os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)\n"
        "from featherback.cli.app import run\n"
        "run(sys.argv[1:])"
    )
    arguments = list(map(str, ("export", here, "--to", to, "--out", out)))
    killed = subprocess.run([sys.executable, "-c", code, *arguments], check=False, capture_output=True)
    assert killed.returncode == -9, killed.stderr
    assert len([entry for entry in here.parent.iterdir() if entry.name.startswith(".new")]) == 1
    usage = shutil.disk_usage(here)
    with monkeypatch.context() as patch:
        patch.setattr("featherback.core.files.shutil.disk_usage", lambda path: usage._replace(free=1000))
        assert command("export", *arguments[1:]).code == 2
    assert sorted(entry.name for entry in here.parent.iterdir()) == ["poet"]
    assert command("export", *arguments[1:]).code == 0
    assert sorted(entry.name for entry in here.parent.iterdir()) == ["new", "poet"]


def test_json_for_programs(command: Command, here: Path) -> None:
    done = command("export", here, "--to", "merged", "--type", "q8_0", "--json")
    values = json.loads(done.out)
    assert values["path"].endswith("poet-merged.gguf")
    assert values["types"] == {"Q8_0": 6}
    assert 0 < values["relative_error"] < 0.01
    assert 0.9 < values["surviving"] < 1.1


def test_a_full_disk_is_told_before_anything_is_written(
    command: Command, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(here)
    monkeypatch.setattr("featherback.core.files.shutil.disk_usage", lambda path: usage._replace(free=1000))
    for to in set(FORMATS.names) - {"sentence_transformers"}:  # which is for folders
        done = command("export", here, "--to", to)
        assert done.code == 2
        assert "0.0 MB free, but poet" in done.err
    assert [entry.name for entry in here.parent.iterdir()] == ["poet"]


@pytest.fixture
def unusual(chat_model: Path, tmp_path: Path) -> Path:
    """A GGUF adapter with different ranks, and without one projection."""
    exceptions = {(0, "v_proj"): Pair(3, 9.0), (1, "q_proj"): None}
    made = LoRA(models.load(chat_model), 5, 10, "q,v", exceptions=exceptions)
    rng = np.random.default_rng(0)
    made.load_state({name: rng.normal(0, 0.1, shape).astype(np.float32) for name, shape in made.shapes().items()})
    gguf.FORMAT.save(made, tmp_path / "unusual.gguf")
    return tmp_path / "unusual.gguf"


def test_training_starts_from_an_adapter(
    command: Command, chat_model: Path, messages: Path, unusual: Path, tmp_path: Path
) -> None:
    """With a learning rate of almost zero the adapter does not change; the run can be resumed."""
    arguments = ("train", chat_model, "--data", messages, "--out", tmp_path / "run")
    done = command(*arguments, "--from", unusual, "--steps", 1, "--lr", 1e-30, "--keep-checkpoints")
    assert done.code == 0, done.err
    assert "rank 5, alpha 10, on q,v, continued from" in done.out
    model = models.load(chat_model)
    before, after = (formats.load(model, path) for path in (unusual, tmp_path / "run"))
    assert after.form.exceptions[(1, "q_proj")] is None
    assert after.layout.most_rank == 5
    for key, values in before.state().items():
        np.testing.assert_allclose(after.state()[key], values, atol=1e-7)
    unusual.unlink()
    again = command(*arguments, "--resume", "--steps", 2)
    assert again.code == 0, again.err
    losses = [line["loss"] for line in RunDirectory.open(tmp_path / "run").metrics()]
    assert len(losses) == 2


def test_the_start_is_not_overridden_silently(
    command: Command, chat_model: Path, messages: Path, unusual: Path, tmp_path: Path
) -> None:
    arguments = ("train", chat_model, "--data", messages, "--out", tmp_path / "run", "--from", unusual)
    for option, value, complaint in (
        ("--rank", 4, "--rank is 4, but the adapter in "),
        ("--targets", "q", "--targets is q, but the adapter in "),
        ("--alpha", 7, "--alpha is 7.0, but the adapter in "),
    ):
        done = command(*arguments, option, value)
        assert done.code == 2
        assert complaint in done.err
    assert not (tmp_path / "run").exists()


def test_every_command_takes_every_format(
    command: Command, here: Path, chat_model: Path, messages: Path, tmp_path: Path
) -> None:
    """`generate` and `evaluate` agree on all formats, and differ without an adapter."""
    model = models.load(chat_model)
    made = formats.load(model, here)
    gguf.FORMAT.save(made, tmp_path / "a.gguf")
    mlx.FORMAT.save(made, tmp_path / "mlx")
    places = (here, here / "adapter_model.safetensors", tmp_path / "a.gguf", tmp_path / "mlx")
    evaluated = {command("evaluate", chat_model, "--data", messages, "--adapter", p).out for p in places}
    assert len(evaluated) == 1
    assert evaluated != {command("evaluate", chat_model, "--data", messages).out}
    ask = ("generate", chat_model, "--prompt", "Hi", "--max-tokens", 8)
    assert len({command(*ask, "--adapter", place).out for place in places}) == 1


def test_every_target_is_in_the_help(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = command("export", "--help").out
    assert f"One of: {', '.join(FORMATS.names)}." in " ".join(text.split())
