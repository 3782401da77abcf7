"""A link in a run directory from somebody else is never followed out of it, whatever its name."""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from featherback.cli.app import run as command
from featherback.core import private
from featherback.core.files import append_bytes, atomic_file, clone_file, link_file, write_bytes
from featherback.core.system import folders
from featherback.engine.host.paged import PagedArray
from featherback.errors import FeatherbackError
from featherback.exports import formats
from featherback.models import load
from featherback.runs.callback import Callback
from featherback.runs.events import Step
from featherback.runs.run_directory import RunDirectory
from featherback.view.report.page import write_report
from tests.models.test_hf_folder import folder_and_gguf
from tests.runs.conftest import Start
from tests.runs.test_whole import FULL
from tests.support.tiny_models import TINY_QWEN2

SECRET = b"a user's own file\n"
OPTIONS: dict[str, Any] = {"eval_seed": 9, "eval_every": 2, "save_every": 1}


class Names(Callback):
    """Return all names that appear in a run directory during training."""

    def __init__(self, run: Path) -> None:
        self.run, self.seen = run, set[Path]()

    def step(self, event: Step) -> None:
        self.seen |= {path.relative_to(self.run) for path in self.run.rglob("*")}


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Make a folder of the user, with a file."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "file").write_bytes(SECRET)
    return folder


def _untouched(outside: Path) -> bool:
    return os.listdir(outside) == ["file"] and (outside / "file").read_bytes() == SECRET


def _links(run: Path, names: set[Path], outside: Path) -> Iterator[Path]:
    """The run once for each name and each kind of link that has it; what had it before is aside meanwhile."""
    aside = run.with_name("aside")
    for name in sorted(names):
        place, made = run / name, not (run / name).parent.exists()
        place.parent.mkdir(parents=True, exist_ok=True)
        for target in (outside if place.is_dir() else outside / "file", outside / "missing"):
            if there := os.path.lexists(place):
                place.rename(aside)
            place.symlink_to(target)
            yield place
            place.unlink()
            if there:
                aside.rename(place)
        if made:
            place.parent.rmdir()


@pytest.mark.parametrize("options", [{}, FULL], ids=["lora", "full"])
def test_no_link_out_of_a_run_is_followed(
    start: Start, tmp_path: Path, outside: Path, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    names = Names(tmp_path / "run")
    run = start("run", names, steps=2, **OPTIONS, **options).path
    found = names.seen | {path.relative_to(run) for path in run.rglob("*")}
    assert {"tokens", "work", "metrics.jsonl", "report.html", "tokens/eval.tokens"} <= set(map(str, found))
    temporary = f"{os.getpid()}.tmp"
    found |= {Path(name.parent, f".{name.name}.{temporary}") for name in found} | {Path("report.png")}
    found |= {Path("logs"), Path("logs", "wandb"), Path("start")}
    opened = RunDirectory.open(run)
    for place in _links(run, found, outside):
        readable = place.name != "run.json" or place.exists()
        said = (
            f"{place} is a link to {place.resolve()}, outside the run directory"
            if readable
            else "is not a run directory"
        )
        for opening in (RunDirectory.open, RunDirectory.take):
            with pytest.raises(FeatherbackError, match=re.escape(said)):
                opening(run)
        with pytest.raises(FeatherbackError, match="outside the run directory"):
            opened.lock()
        with pytest.raises(FeatherbackError, match="outside the run directory"):
            write_report(opened)
        assert _untouched(outside)
    place = run / "report.html"
    place.unlink()
    place.symlink_to(outside / "missing")
    for words in (["report", str(run)], ["inspect", str(run)]):
        assert command(words) == 2
        _, err = capsys.readouterr()
        assert err.startswith(f"error: {place} is a link")
        assert len(err.splitlines()) == 1
    with pytest.raises(FeatherbackError, match=r"report\.html is a link"):
        start("run", steps=3, resume=True, **OPTIONS, **options)
    assert _untouched(outside)
    place.unlink()
    assert command(["report", str(run)]) == 0


@pytest.mark.parametrize("options", [{}, FULL], ids=["lora", "full"])
def test_what_a_run_trained_is_not_read_through_a_link_out_of_it(
    start: Start,
    tmp_path: Path,
    tiny_path: Path,
    outside: Path,
    options: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = start("run", steps=1, **options).path
    place = run / ("model.gguf" if options else "adapter_model.safetensors")
    place.unlink()
    place.symlink_to(outside / "file")
    words = ["generate", str(run)] if options else ["generate", str(tiny_path), "--adapter", str(run)]
    target = ["--to", "merged", "--type", "f16"] if options else ["--to", "gguf"]
    for asked in ([*words, "--prompt", "x"], ["export", str(run), *target, "--out", str(tmp_path / "new.gguf")]):
        assert command(asked) == 2
        assert capsys.readouterr().err.startswith(f"error: {place} is a link to {outside / 'file'}")


def test_a_run_in_hugging_faces_cache_is_an_adapter(start: Start, tmp_path: Path, tiny_path: Path) -> None:
    """Every file of it is a link, run.json too: to the repository's folder of files, and to nowhere else."""
    run, snapshot = start("run", steps=1).path, tmp_path / "snapshots" / "main"
    snapshot.mkdir(parents=True)
    (tmp_path / "blobs").mkdir()
    for name in ("run.json", "adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(run / name, tmp_path / "blobs" / name)
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    formats.load(load(tiny_path), snapshot)
    (snapshot / "NOTICE").symlink_to(run / "metrics.jsonl")
    with pytest.raises(FeatherbackError, match=r"NOTICE is a link to .*, outside the run directory"):
        formats.load(load(tiny_path), snapshot)


@pytest.mark.parametrize("shape", ["record is a link", "config.json at its root", "model in it"])
def test_a_model_of_a_run_with_a_link_out_of_it_is_not_opened(
    tmp_path: Path, outside: Path, shape: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """However the run is named, and whatever its run.json is."""
    run = tmp_path / "run"
    folder_and_gguf(tmp_path, TINY_QWEN2)
    run.mkdir()
    (tmp_path / "hf").rename(run / "model")
    if shape == "record is a link":
        (run / "r.json").write_text("{}")
        (run / "run.json").symlink_to("r.json")
    else:
        (run / "run.json").write_text("{}")
    if shape == "config.json at its root":
        shutil.copytree(run / "model", run, dirs_exist_ok=True)
    place = run / "model" / "NOTICE"
    place.symlink_to(outside / "file")
    named, out = run / "model" if shape == "model in it" else run, tmp_path / "new"
    with pytest.raises(FeatherbackError, match="NOTICE is a link to"):
        load(named)
    words = [["generate", str(named), "--prompt", "x"]]
    if named == run:
        words.append(["export", str(run), "--to", "merged", "--out", str(out)])
    for each in words:
        assert command(each) == 2
        assert f"{place} is a link to {outside / 'file'}" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("target", ["/proc/self/cwd", "../{up}proc/self/cwd", "up/../up/../{up}x", "{run}/../x"])
def test_a_link_that_leads_inside_only_by_chance_is_refused(
    start: Start, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through /proc it leads to another place each time."""
    run = start("run", steps=1).path
    monkeypatch.chdir(run)
    (run / "up").symlink_to(".")
    (run / "link").symlink_to(target.format(run=run, up="../" * (len(run.parts) - 2)))
    with pytest.raises(FeatherbackError, match=r"link is a link to .*, outside the run directory"):
        RunDirectory.open(run)


def test_a_file_that_has_another_name_outside_is_not_changed(start: Start, outside: Path) -> None:
    """Neither its content nor its permissions."""
    run, file = start("run", steps=1).path, outside / "file"
    file.chmod(0o644)
    os.link(file, run / "notes")
    (run / "own").write_bytes(b"")
    os.link(run / "own", run / "own-too")
    (run / "own").chmod(0o644)
    RunDirectory.open(run).make_private()
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert stat.S_IMODE((run / "own").stat().st_mode) == 0o600
    with pytest.raises(FeatherbackError, match="another name"):
        append_bytes(run / "notes", b"new")
    assert _untouched(outside)


def test_links_in_a_folder_for_a_new_run_are_not_followed(start: Start, tmp_path: Path, outside: Path) -> None:
    """What a preparation that was killed would have left."""
    run = tmp_path / "run"
    for name in ("tokens", "start", "tokens/train.tokens", ".run.json.7.tmp"):
        run.mkdir()
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).symlink_to(outside if name in ("tokens", "start") else outside / "file")
        with pytest.raises(FeatherbackError, match=r"not empty|is a link to"):
            start("run", steps=1)
        assert _untouched(outside)
        shutil.rmtree(run)


def test_a_pipe_in_a_run_is_not_waited_for(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    run = start("run", steps=1).path
    (run / "metrics.jsonl").unlink()
    os.mkfifo(run / "metrics.jsonl")
    assert command(["report", str(run)]) == 2
    assert "metrics.jsonl is not a file or a folder" in capsys.readouterr().err


def test_links_that_stay_inside_and_a_run_that_is_named_by_a_link_are_fine(start: Start, tmp_path: Path) -> None:
    """--out may be a link, because the user named it."""
    place = tmp_path / "elsewhere"
    place.mkdir()
    (tmp_path / "run").symlink_to(place)
    run = start("run", steps=1).path
    (run / "notes").mkdir()
    (run / "notes" / "latest").symlink_to("../metrics.jsonl")
    (run / "notes" / "all").symlink_to(place / "metrics.jsonl")
    start("run", steps=2, resume=True)
    assert RunDirectory.open(place).record.status == "finished"
    assert (tmp_path / "run").is_symlink()


def test_links_in_the_folders_of_loggers_are_not_looked_at(start: Start, tmp_path: Path, outside: Path) -> None:
    """W&B links its logs into its cache. A folder of the same name elsewhere in the run is looked at."""
    run = start("run", steps=1).path
    folder = run / "logs" / "wandb" / "deep"
    folder.mkdir(parents=True)
    (folder / "debug.log").symlink_to(outside / "file")
    (folder / "gone").symlink_to(outside / "missing")
    os.mkfifo(folder / "pipe")
    start("run", steps=2, resume=True)
    assert RunDirectory.open(run).record.status == "finished"
    assert _untouched(outside)
    for place in (run / "logs" / "debug.log", run / "tokens" / "logs" / "wandb" / "x"):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(outside / "file")
        with pytest.raises(FeatherbackError, match="outside the run directory"):
            RunDirectory.open(run)
        place.unlink()


WRITERS: dict[str, Callable[[Path, Path], object]] = {
    "atomic_file": lambda path, _: write_bytes(path, b"new"),
    "clone_file": lambda path, source: clone_file(source, path),
    "link_file": lambda path, source: link_file(source, path),
    "in_place": lambda path, source: clone_file(source, path, in_place=True),
    "append": lambda path, _: append_bytes(path, b"new"),
    "paged": lambda path, _: PagedArray(1, 1, path).close(),
    "tokens": lambda path, _: _written_tokens(path),
}


def _written_tokens(path: Path) -> None:
    from featherback.data.token_file import TokenFileWriter

    with TokenFileWriter(path) as writer:
        writer.add([1, 2], [1, 1])


@pytest.mark.parametrize("kind", ["existing", "dangling"])
@pytest.mark.parametrize("writer", WRITERS)
def test_nothing_is_written_through_a_link(tmp_path: Path, outside: Path, writer: str, kind: str) -> None:
    """It takes the link's place, or is refused in a sentence that says so."""
    folder, source = tmp_path / "folder", tmp_path / "source"
    folder.mkdir()
    source.write_bytes(b"source")
    path = folder / "name"
    path.symlink_to(outside / ("file" if kind == "existing" else "missing"))
    try:
        WRITERS[writer](path, source)
    except FeatherbackError as error:
        assert "it is a link, and links are not followed" in str(error)  # noqa: PT017
    else:
        assert not path.is_symlink()
    assert _untouched(outside)


def test_a_temporary_file_has_a_name_that_nobody_can_take_before(tmp_path: Path) -> None:
    names = set()
    for _ in range(3):
        with atomic_file(tmp_path / "name") as file:
            names |= set(os.listdir(tmp_path)) - {"name"}
            file.write(b"new")
    assert len(names) == 3
    assert all(len(name) >= len(f".name.{os.getpid()}-.tmp") + 16 for name in names)


def test_a_folder_that_is_replaced_while_its_file_is_written_changes_nothing(tmp_path: Path, outside: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with atomic_file(folder / "name") as file:
        file.write(b"new")
        folder.rename(tmp_path / "moved")
        folder.symlink_to(outside)
    assert (tmp_path / "moved" / "name").read_bytes() == b"new"
    assert _untouched(outside)


def test_an_existing_temporary_name_is_not_used(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "taken").symlink_to(outside / "missing")
    with folders.Folder(tmp_path) as folder, pytest.raises(FileExistsError):
        private.create(folder, "taken")
    assert _untouched(outside)
