"""Gradient estimators. Each module here is one method and holds its class as `METHOD`: adding one is adding a file."""

from __future__ import annotations

from pathlib import Path

from featherback.adapters.lora import LoRA
from featherback.memory.dry_run import account
from featherback.memory.job import Job
from featherback.memory.plan import Plan
from featherback.memory.resources import resources
from featherback.methods.base import Method, Options
from featherback.models.model import Model
from featherback.registry import OwnOptions, Registry

METHODS: Registry[type[Method]] = Registry(__name__, "METHOD", "method", shared=("base",))
OPTIONS: OwnOptions[Options] = OwnOptions(METHODS, lambda name: METHODS[name].options_class)


def create(
    name: str,
    model: Model,
    adapter: LoRA | None,
    plan: Plan,
    folder: Path | None = None,
    options: Options | None = None,
) -> Method:
    """A method with what it needs to run on a model and its adapter; `folder` holds what the plan keeps in files."""
    method = METHODS[name]
    job = Job.of(
        model,
        method=method,
        rank=adapter.rank if adapter else 0,
        targets=adapter.targets if adapter else (),
        tokens=plan.tokens,
        sequence=plan.tokens,
        compute=plan.compute,
        options=options,
    )
    needed, backward = account(job, plan), adapter is not None and method.needs_checkpoints
    at_work = resources(model, plan, needed.scratch, needed.kept, checkpoints=backward, folder=folder)
    return method(model, adapter, plan, at_work, options)
