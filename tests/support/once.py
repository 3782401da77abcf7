"""What tests pay once instead of in each run: processes that start, dry runs, and waiting for the disk.

A test that is about one of these uses the module itself, or a process of its own.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest

from featherback.data import launch
from featherback.data.prepare import prepare
from featherback.data.templates.renderer import Renderer
from featherback.engine import kernels
from featherback.federated import fit
from featherback.infer import decoder, joint_needs, key_cache, needs, rollouts, scheduler
from featherback.infer.needs import Needs
from featherback.methods.memory.job import Job
from featherback.methods.memory.stored import StoredSizes
from featherback.models.model import Model
from featherback.runs import choose, decoders, outlook, preparation, worker_process

_UNCOUNTED = {
    "accounts",
    "writing",
    "tokens",
    "threads",
    "files",
    "reading",
    "layer_mapped",
    "weight_bytes",
    "vector_copies",
}
"""The fields of a job on which no dry run depends."""


@contextmanager
def paid_once() -> Iterator[None]:
    """Pay once while the context lasts."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(worker_process, "_probe", _probed_once(worker_process._probe))
        for module in (preparation, launch, fit):
            patched.setattr(module, "prepare_in_subprocess", prepare_here)
        job_of = _with_accounts(choose.job_of)
        for module in (choose, outlook):
            patched.setattr(module, "job_of", job_of)
        patched.setattr(outlook, "_shape_job", _with_accounts(outlook._shape_job))
        of_joint_passes = _counted_once(joint_needs.joint_needs)
        for module in (joint_needs, rollouts, scheduler):
            patched.setattr(module, "joint_needs", of_joint_passes)
        of_passes = _counted_once(needs.needs)
        for module in (needs, decoder, decoders):
            patched.setattr(module, "needs", of_passes)
        patched.setattr(os, "fsync", lambda file: None)  # no test cuts the power
        yield


def _probed_once(probe: Callable[[dict[str, str]], str]) -> Callable[[dict[str, str]], str]:
    """Start the process that measures a bare training process once for each environment."""
    probes = dict[Hashable, str]()

    def once(environment: dict[str, str]) -> str:
        subject = tuple(sorted((name, value) for name, value in environment.items() if name != "PYTEST_CURRENT_TEST"))
        if subject not in probes:
            probes[subject] = probe(environment)
        return probes[subject]

    return once


@cache
def renderer() -> Renderer:
    """The process that renders templates, for all tests that do not end it."""
    return Renderer()


def prepare_here(*arguments: Any, **options: Any) -> Any:
    """Prepare data in this process."""
    return prepare(*arguments, **options, renderer=renderer())


def _counted_once(count: Callable[..., Needs]) -> Callable[..., Needs]:
    """Count the memory of equal passes once. `count`: `needs` or `joint_needs`."""
    counted = dict[Hashable, Needs]()

    def once(model: Model, adapters: Any, *settings: Hashable, **more: Hashable) -> Needs:
        given = adapters if isinstance(adapters, list) else [] if adapters is None else [adapters]
        shapes = [vars(StoredSizes.of(model)), *((each.layout.blocks, each.layout.form) for each in given)]
        key = pickle.dumps(shapes), settings, *more.items(), key_cache.PIECE, kernels.threads()
        if key not in counted:
            counted[key] = count(model, adapters, *settings, **more)
        return counted[key]

    return once


def _with_accounts(job_of: Callable[..., Job]) -> Callable[..., Job]:
    """Let equal jobs share the results of their dry runs."""
    shared = dict[Hashable, dict[Any, Any]]()

    def job(*arguments: Any) -> Job:
        made = job_of(*arguments)
        content = pickle.dumps([getattr(made, each.name) for each in fields(made) if each.name not in _UNCOUNTED])
        runs = made.method.loss, made.method.gradients  # a test may have replaced them
        return replace(made, accounts=shared.setdefault((content, *runs), {}))

    return job
