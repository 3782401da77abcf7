"""`python -m benchmarks.step JSON`: a few steps under a plan given in full; their figures come out as JSON.

The training worker lets the planner choose; here a bench chooses.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from featherback import methods, models, optim
from featherback.data.batch import Batch
from featherback.engine import kernels
from featherback.engine.host.meter import Meter
from featherback.engine.host.paged import PagedArray
from featherback.methods.memory.plan import Plan
from featherback.models.adapter import LoRA


def main(request: dict[str, Any]) -> dict[str, Any]:
    """Keys: model, folder, plan (fields of Plan), method, optimizer, rank, steps, tokens (a list per step), threads."""
    meter = Meter()
    meter.start()
    kernels.set_threads(request.get("threads") or kernels.default_threads())
    model, plan, folder = models.load(request["model"]), Plan(**request["plan"]), Path(request["folder"])
    states = folder if plan.states == "file" else None
    adapter = LoRA(model, request["rank"], path=states and states / "parameters.f32")
    optimizer = optim.create(request["optimizer"], adapter.parameters, adapter.layout.slots, place=states)
    gradients = PagedArray(adapter.parameters.layers, adapter.parameters.size, states and states / "gradients.f32")
    method = methods.create(request["method"], model, adapter, plan, folder)
    seconds, losses = [], []
    for tokens in request["tokens"]:
        start = time.perf_counter()
        batch = Batch.from_sequences([tokens])
        gradients.clear()
        losses.append(method.gradients(batch, 1 / batch.n_targets, gradients) / batch.n_targets)
        optimizer.step(gradients, 1e-4)
        seconds.append(time.perf_counter() - start)
    meter.stop()
    return {"footprint_mb": meter.peak_footprint_mb, "rss_mb": meter.peak_rss_mb, "seconds": seconds, "losses": losses}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
