"""`train` and `evaluate` as whole commands: what their processes say, how they end, and which programs they start."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command
from tests.runs.runs import PATIENCE
from tests.support import tiers


def _run(*words: object, script: str = "", **options: Any) -> subprocess.CompletedProcess[str]:
    start = ["-c", script] if script else ["-m", "featherback"]
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run([sys.executable, *start, *map(str, words)], text=True, timeout=PATIENCE, check=False, **given)


def _training(model: Path, data: Path, out: Path, *more: object) -> list[object]:
    return ["train", model, "--data", data, "--out", out, "--steps", 1, "--seq-len", 64, "--samples", 0, *more]


def test_an_error_of_a_process_below_is_said_once(chat_model: Path, messages: Path, tmp_path: Path) -> None:
    """Regression: a logger that is not installed was called a bug in Featherback, with exit status 1."""
    hidden = "import sys; sys.modules['wandb'] = None; from featherback.cli import main; main()"
    done = _run(*_training(chat_model, messages, tmp_path / "run", "--log-to", "wandb"), script=hidden)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "wandb" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only some systems have a device that is always full")
@pytest.mark.parametrize("words", tiers.some(["evaluate", "train --dry-run", "train --help"], 1))
def test_a_result_that_cannot_be_printed_is_an_error(
    chat_model: Path, messages: Path, tmp_path: Path, words: str
) -> None:
    name, *options = words.split()
    given = [] if options == ["--help"] else [chat_model, "--data", messages]
    given += ["--out", tmp_path / "run"] if options == ["--dry-run"] else []
    with open("/dev/full", "w") as full:
        done = _run(name, *given, *options, stdout=full)
    assert (done.returncode, "No space left" in done.stderr) == (2, True)


PROGRAMS = """
import os, sys
def seen(event, arguments):
    if event in ("os.exec", "os.posix_spawn", "subprocess.Popen", "os.system"):
        os.write(LOG, f"{event} {arguments[1]}\\n".encode())
    if event == "open" and str(arguments[0]) == sys.argv[2]:
        os.write(LOG, f"opens {os.getpid()}\\n".encode())
LOG = os.open(sys.argv.pop(), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
sys.addaudithook(seen)
from featherback.cli import main
main()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, children are programs of their own")
def test_a_command_starts_one_other_program(chat_model: Path, messages: Path, tmp_path: Path) -> None:
    """That of the chat template. Two processes open the model: the one that prepares, and the one that trains."""
    log = tmp_path / "log"
    done = _run(*_training(chat_model, messages, tmp_path / "run"), log, script=PROGRAMS)
    assert done.returncode == 0, done.stderr
    lines = log.read_text().splitlines()
    (program,) = [line for line in lines if not line.startswith(("opens", "os.exec"))]
    assert sum(line.startswith("os.exec") for line in lines) <= 1  # itself, with another environment
    assert "featherback.data.templates.process" in program
    openers = {line for line in lines if line.startswith("opens")}
    assert len(openers) == 2


def test_a_run_whose_preparation_was_killed_is_named_so(
    command: Command, chat_model: Path, messages: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    (out / "tokens").mkdir(parents=True)
    done = command(*_training(chat_model, messages, out, "--resume"))
    assert done.code == 2
    assert "Its preparation has not ended; repeat the command without --resume." in done.err
    assert command(*_training(chat_model, messages, out)).code == 0
    assert f"add --from {out}" in command(*_training(chat_model, messages, out)).err


READS = """
import sys
from featherback.cli.app import run
assert run(sys.argv[1:]).options["optimizer"] == "adamw"
for package in ("optim.rules", "nn.objectives", "nn.adapters", "methods", "models.families"):
    print(*[name for name in sys.modules if name.startswith(f"featherback.{package}.")])
"""


def test_reading_options_loads_only_what_is_chosen(chat_model: Path, messages: Path, tmp_path: Path) -> None:
    done = _run(*_training(chat_model, messages, tmp_path / "run", "--rank", 4), script=READS)
    assert done.returncode == 0, done.stderr
    for unused in ("rules.lion", "objectives.dpo", "adapters.spartan", "methods.mezo", "families.gemma2"):
        assert f"{unused} " not in f"{done.stdout} ".replace("\n", " "), unused
    needed = _run(*_training(chat_model, messages, tmp_path / "run", "--beta1", 0.8), script=READS)
    assert "rules.lion" in needed.stdout, needed.stderr


def test_a_plan_in_a_file_that_does_not_fit_is_made_anew(
    command: Command, messages: Path, tmp_path: Path, chat_model: Path
) -> None:
    words = ("--data", messages, "--steps", 1, "--memory", "4GB", "--samples", 0)
    code, _, err = command("train", chat_model, *words, "--out", tmp_path / "first")
    assert code == 0, err
    before = (tmp_path / "first" / "run.yaml").read_text()
    for keep, says in (
        ({"m": 9}, "plan.keep has m in 9 layers; the model has 2. Making a new plan"),
        ({"zz": 2}, "plan.keep has 'zz'; this model can keep"),
        ({"m": "x"}, "plan: keep.m is 'x'; it must be a whole number. Making a new plan"),
    ):
        text, count = re.subn("keep: {.*?}", f"keep: {json.dumps(keep)}", before)
        assert count == 1
        (tmp_path / "again.yaml").write_text(text)
        out = tmp_path / "".join(keep) / str(*keep.values())
        code, _, err = command("train", "--config", tmp_path / "again.yaml", "--out", out)
        assert code == 0
        assert f"note: the plan in the file cannot be used: {says}" in err
        assert "keep" in (out / "run.json").read_text()
