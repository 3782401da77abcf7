"""Only the owner can read the files of a run, from the first byte on, whatever the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from featherback.cli.app import run as command
from featherback.core import private
from featherback.core.files import atomic_folder, write_bytes
from featherback.exports import formats
from featherback.exports.formats.peft import FORMAT as PEFT
from featherback.models import load
from featherback.runs.callback import Callback
from featherback.runs.config import TrainConfig
from featherback.runs.events import Step
from featherback.runs.preparation import prepare_run
from tests.runs.conftest import Start
from tests.runs.test_whole import FULL


@pytest.fixture(params=[0, 0o022, 0o277], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def _open_to_others(place: Path) -> list[str]:
    """Return the paths in a folder, including itself, that others can access."""
    wrong = []
    for path in [place, *place.rglob("*")]:
        mode = stat.S_IMODE(path.lstat().st_mode)
        if mode != (0o700 if path.is_dir() else 0o600):
            wrong.append(f"{path}: {mode:o}")
    return wrong


class Looks(Callback):
    """Looks at a run's directory after each step."""

    def __init__(self, run: Path) -> None:
        self.run, self.wrong = run, list[str]()

    def step(self, event: Step) -> None:
        self.wrong += _open_to_others(self.run)


@pytest.mark.parametrize("options", [{}, FULL], ids=["lora", "full"])
def test_a_run_is_private(start: Start, tmp_path: Path, umask: int, options: dict[str, Any]) -> None:
    looks = Looks(tmp_path / "run")
    run = start("run", looks, steps=2, eval_seed=9, eval_every=1, save_every=1, **options)
    assert command(["report", str(run.path)]) == 0
    assert looks.wrong == []
    assert _open_to_others(run.path) == []


def test_no_file_of_a_run_is_ever_open_to_others(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even between the calls that make it and make it private."""
    made, open_now, mkdir_now, before = [], os.open, os.mkdir, os.umask(0)

    def opened(path: Any, flags: int, mode: int = 0o777, **named: Any) -> int:
        file = open_now(path, flags, mode, **named)
        if flags & os.O_CREAT:
            made.append((str(path), stat.S_IMODE(os.fstat(file).st_mode)))
        return file

    def mkdir(path: Any, mode: int = 0o777, **named: Any) -> None:
        mkdir_now(path, mode, **named)
        made.append((str(path), stat.S_IMODE(os.stat(path, dir_fd=named.get("dir_fd")).st_mode)))

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "mkdir", mkdir)
    try:
        start("run", steps=2, eval_seed=9, save_every=1)
    finally:
        os.umask(before)
    assert {"run", "tokens", "work", "metrics.jsonl"} <= {name for name, _ in made}
    assert [each for each in made if each[1] & 0o077] == []


def test_records_given_from_python_are_private(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While they are prepared by another process, which finds them in a file."""
    seen = []

    def prepare(_: str, source: Any, *__: Any) -> Any:
        seen.append(stat.S_IMODE(os.stat(source.paths[0]).st_mode))
        raise KeyboardInterrupt

    monkeypatch.setattr("featherback.runs.preparation.prepare_in_subprocess", prepare)
    config = TrainConfig(model=str(tiny_path), data="tokens", out=str(tmp_path / "run"), seq_len=16)
    with pytest.raises(KeyboardInterrupt):
        prepare_run(config, [{"text": "private"}])
    assert seen == [0o600]


def test_a_run_of_an_earlier_version_becomes_private(start: Start) -> None:
    run = start("run", steps=1)
    _open_up(run.path)
    assert command(["inspect", str(run.path)]) == 0
    assert len(_open_to_others(run.path)) > 5  # which only reads
    start("run", steps=2, resume=True)
    assert _open_to_others(run.path) == []
    _open_up(run.path)
    assert command(["report", str(run.path)]) == 0
    assert _open_to_others(run.path) == []


def _open_up(place: Path) -> None:
    for path in [place, *place.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)


def test_a_folder_that_was_there_becomes_private(start: Start, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o755)
    assert _open_to_others(start("run", steps=1).path) == []


def test_what_is_exported_has_ordinary_permissions(start: Start, tiny_path: Path, tmp_path: Path) -> None:
    """It is made to be given away; in a folder that is private it is as private."""
    run, before = start("run", steps=1).path, os.umask(0o022)
    try:
        model = load(tiny_path)
        adapter = formats.load(model, run)
        for above, file, folder in ((0o755, 0o644, 0o755), (0o700, 0o600, 0o700)):
            place = tmp_path / oct(above)
            place.mkdir(mode=above)
            with atomic_folder(place / "new") as made:
                PEFT.save(adapter, made)
            assert stat.S_IMODE((place / "new").stat().st_mode) == folder
            assert {stat.S_IMODE(path.stat().st_mode) for path in (place / "new").iterdir()} == {file}
            write_bytes(place / "report", b"")
            assert stat.S_IMODE((place / "report").stat().st_mode) == file
    finally:
        os.umask(before)


def test_folders_above_a_private_one_are_ordinary(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        (tmp_path / "shared").mkdir(mode=0o755)
        private.make_private_folder(tmp_path / "shared" / "above" / "run")
    finally:
        os.umask(before)
    above = tmp_path / "shared" / "above"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (above, above / "run")] == [0o755, 0o700]
