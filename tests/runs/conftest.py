"""A tiny model, token sequences, and short runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from featherback.runs.callback import Callback
from featherback.runs.config import TrainConfig
from featherback.runs.preparation import prepare_run, resume_run
from featherback.runs.run_directory import RunDirectory
from featherback.runs.trainer import train_run
from featherback.view.show import draw
from tests.support.tiny_models import TINY_LLAMA, write_tiny

SEQ_LEN = 16
Start = Callable[..., RunDirectory]


def sequences(count: int = 12, seed: int = 0) -> list[tuple[list[int], list[int]]]:
    """Learnable sequences of SEQ_LEN tokens (arithmetic progressions), trained from differing places on."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        start, stride = rng.integers(0, 50), rng.integers(1, 4)
        tokens = ((start + stride * np.arange(SEQ_LEN)) % TINY_LLAMA.vocab_size).tolist()
        masked = int(rng.integers(1, SEQ_LEN - 1))
        made.append((tokens, [-100] * masked + tokens[masked:]))
    return made


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama."""
    return write_tiny(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture
def start(tiny_path: Path, tmp_path: Path) -> Start:
    """Prepare and train a run called `name`; returns its directory."""

    def begin(
        name: str = "run",
        reporter: Callback | None = None,
        resume: bool = False,
        eval_seed: int | None = None,
        count: int = 12,
        **options: Any,
    ) -> RunDirectory:
        values: dict[str, Any] = {
            "model": str(tiny_path),
            "data": "tokens",
            "out": str(tmp_path / name),
            "seq_len": SEQ_LEN,
            "rank": 4,
            "learning_rate": 1e-2,
            "compute": "fp32",
            "keep_checkpoints": True,  # many tests go on with it
            "eval_data": None if eval_seed is None else "tokens",
            **options,
        }
        held_out = None if eval_seed is None else sequences(4, eval_seed)
        if resume:
            run = resume_run(values, sequences(count), held_out)
        else:
            run = prepare_run(TrainConfig.of(**values), sequences(count), held_out)
        train_run(run, reporter, draw=draw)
        return run

    return begin
