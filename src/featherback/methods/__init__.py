"""Gradient estimators. Each module is one method and holds its class as `METHOD`. To add a method, add a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from featherback.core.registry import OwnOptions, Registry
from featherback.methods.base import Method, Options
from featherback.methods.memory.dry_run import account
from featherback.methods.memory.job import Job
from featherback.methods.memory.plan import Plan
from featherback.methods.memory.resources import resources
from featherback.methods.whole.settings import WholeModelSettings
from featherback.models.adapter import Adapter
from featherback.models.model import Model
from featherback.nn.objectives.base import Objective
from featherback.nn.objectives.next_token import NEXT_TOKEN

METHODS: Registry[type[Method]] = Registry(
    __name__,
    "METHOD",
    "method",
    shared=("assembly", "base", "cached", "entry", "forward", "likely", "losses", "scoring", "sinks", "sweep"),
)
OPTIONS: OwnOptions[Options] = OwnOptions(METHODS, lambda name: METHODS[name].options_class)


M = TypeVar("M", bound=Method)


def create(name: str, *arguments: Any, **options: Any) -> Method:
    """Create the method `name`, as `create_of` does."""
    return create_of(METHODS[name], *arguments, **options)


def create_of(
    method: type[M],
    model: Model,
    adapter: Adapter | None,
    plan: Plan,
    folder: Path | None = None,
    options: Options | None = None,
    whole: WholeModelSettings | None = None,
    objective: Objective = NEXT_TOKEN,
) -> M:
    """Create a method with the resources it needs for a model and its adapter.

    `folder`: where the plan's files are created. `whole`: how the model's own weights are trained, without an adapter.
    Raises FeatherbackError for an adapter of another model.
    """
    adapter = None if adapter is None else adapter.on(model)
    job = Job.of(
        model,
        method=method,
        form=adapter.form.widest if adapter else None,
        tokens=plan.tokens,
        sequence=plan.tokens,
        compute=plan.compute,
        options=options,
        whole=whole,
        objective=objective,
    )
    trained = adapter is not None or whole is not None
    needed, backward = account(job, plan), trained and method.needs_checkpoints
    allocated = resources(
        model,
        plan,
        needed.scratch,
        needed.kept,
        checkpoints=job.backward_count * backward,
        folder=folder,
        changing=whole is not None,
    )
    return method(model, adapter, plan, allocated, options, objective)
