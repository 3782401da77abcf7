"""A new run that fails before its first step leaves nothing behind, so the next try works. What was there stays."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from featherback.core import private
from featherback.errors import FeatherbackError
from featherback.methods.mesp import MeSP
from featherback.runs import new_run, trainer
from featherback.runs.run_directory import RunDirectory
from tests.runs.conftest import Start

Fail = Callable[..., Any]

PLACES: dict[str, tuple[Any, str]] = {
    "creating the folder of tokens": (private, "create_folder"),
    "writing tokens": (new_run, "_tokens"),
    "settling the length": (new_run, "settle"),
    "holding out": (new_run, "arrange"),
    "making room": (RunDirectory, "begin_work"),
    "opening the model again": (trainer.models, "load"),
    "making the trainer": (trainer, "Trainer"),
    "the first step": (trainer.Trainer, "_step"),
}


def _failing(error: BaseException) -> Fail:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    return fail


@pytest.mark.parametrize("error", [FeatherbackError("no"), MemoryError(), OSError(errno.ENOSPC, "No space left")])
@pytest.mark.parametrize("existed", [False, True])
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_a_run_that_fails_early_does_not_block_the_next(
    start: Start, tmp_path: Path, place: tuple[Any, str], existed: bool, error: BaseException
) -> None:
    run = tmp_path / "run"
    if existed:
        run.mkdir()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(*place, _failing(error))
        with pytest.raises((FeatherbackError, MemoryError, OSError)):
            start(steps=2)
    assert run.exists() == existed
    assert not existed or not list(run.iterdir())
    assert start(steps=2).record.status == "finished"


def test_a_run_that_fails_later_is_kept(start: Start, tmp_path: Path) -> None:
    gradients, metrics = MeSP.gradients, tmp_path / "run" / "metrics.jsonl"

    def fail_later(self: Any, *arguments: Any, **options: Any) -> Any:
        if metrics.exists() and metrics.stat().st_size:
            raise MemoryError
        return gradients(self, *arguments, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(MeSP, "gradients", fail_later)
        with pytest.raises(MemoryError):
            start(steps=4, save_every=1)
    assert RunDirectory.open(tmp_path / "run").record.status == "failed"
    assert start(steps=4, resume=True).record.status == "finished"


def test_a_resumed_run_is_kept(start: Start, tmp_path: Path) -> None:
    """It was prepared by an earlier command, whose work is not lost."""
    place = PLACES["the first step"]
    run = start(steps=1).path
    for kept in ("adapter_model.safetensors", "metrics.jsonl", *(path.name for path in run.glob("*.fbc"))):
        (run / kept).unlink()
    opened = RunDirectory.open(run)
    opened.update(status="prepared", summary=None, evaluations=[])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(*place, _failing(FeatherbackError("no")))
        with pytest.raises(FeatherbackError):
            start(steps=1, resume=True)
    assert start(steps=1, resume=True).record.status == "finished"
