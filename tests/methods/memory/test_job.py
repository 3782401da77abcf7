"""The sizes that a job states for a model, against real allocations."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from featherback import models
from featherback.engine import backend
from featherback.engine.host.pager import WeightPager
from featherback.methods import METHODS
from featherback.methods.memory import planner
from featherback.methods.memory.job import Job
from featherback.methods.memory.plan import Plan, Weights
from featherback.models.architecture.config import ModelConfig
from tests.methods.memory.test_planner import BASELINE, MACHINE
from tests.models.test_hf_folder import folder_and_gguf
from tests.support.tiny_models import TINY_GEMMA3, TINY_LLAMA, TINY_QWEN2


def array_bytes(model: models.Model) -> int:
    """Return the bytes of the NumPy arrays that a pager of the model holds."""
    tracemalloc.start()
    try:
        pager = WeightPager(model, backend.of("fp32"), "paged")
        domain = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
        held = tracemalloc.take_snapshot().filter_traces([domain])
        pager.close()
    finally:
        tracemalloc.stop()
    return sum(trace.size for trace in held.traces)


@pytest.mark.parametrize(
    ("config", "dtype", "copied"),
    [
        (TINY_GEMMA3, "F32", "norms with the offset that Hugging Face leaves out"),
        (TINY_QWEN2, "BF16", "norms and biases in float32"),
        (TINY_LLAMA, "F32", None),
    ],
    ids=["offset", "converted", "as they lie"],
)
def test_copies_of_norms_and_biases_are_counted(
    tmp_path: Path, config: ModelConfig, dtype: str, copied: str | None
) -> None:
    hf, gguf = map(models.load, folder_and_gguf(tmp_path, config, dtype))
    job, in_gguf = (Job.of(model, method=METHODS["mesp"]) for model in (hf, gguf))
    assert job.vector_copies == array_bytes(hf) == (job.vector_bytes if copied else 0)
    assert in_gguf.vector_copies == array_bytes(gguf) == 0
    for weights in get_args(Weights):
        plan = Plan(tokens=256, weights=weights)
        with_copies, without = (
            planner.predict(j, plan, BASELINE, MACHINE) for j in (job, replace(job, vector_copies=0, accounts={}))
        )
        more = 0 if weights == "streamed" else job.vector_copies  # all are copied there, whatever they are
        assert with_copies.footprint - without.footprint == with_copies.rss - without.rss == more
