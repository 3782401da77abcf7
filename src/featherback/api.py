"""The public functions. `featherback/__init__.py` brings them in when they are first used."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from featherback import methods, models
from featherback.adapters.lora import LoRA
from featherback.data.batch import IGNORE, Batch
from featherback.errors import FeatherbackError
from featherback.host.paged import PagedArray
from featherback.memory.plan import Plan
from featherback.models.model import Model
from featherback.training.choose import plan_for, worker_baseline
from featherback.training.config import COMPUTE, TrainConfig
from featherback.training.launch import Examples, prepare_run, resume_run
from featherback.training.rehearsal import rehearsed_baseline
from featherback.training.reporter import Reporter, TextReporter
from featherback.training.run import Run
from featherback.training.trainer import train_run

Tokens = npt.ArrayLike


def load(model: str | os.PathLike[str]) -> Model:
    """Open a model (weights stay on disk): a GGUF file, a Hugging Face folder, or a fetched name."""
    from featherback.hub.locate import locate

    return models.load(locate(os.fspath(model)))


def gradients(
    model: Model,
    adapter: LoRA,
    tokens: Tokens | Sequence[Tokens],
    labels: Tokens | Sequence[Tokens] | None = None,
    method: str = "mesp",
    compute: str = "fp32",
) -> tuple[float, dict[str, npt.NDArray[np.float32]]]:
    """The mean loss (nats per token) and its gradient with respect to every LoRA matrix.

    `tokens`: ids (T,), or a list of such sequences, which do not see each other. `labels`: aligned with the
    tokens, -100 = not trained; None = every next token. The gradients have Hugging Face's names and layout:
    {"model.layers.0.self_attn.q_proj.lora_A.weight": float32 (r, in), ...}.
    """
    batch = _batch(tokens, labels)
    longest, room = int(np.diff(batch.cu_seqlens).max()), model.config.max_position_embeddings
    if longest > room:
        raise FeatherbackError(f"A sequence has {longest} tokens; the model was made for at most {room}.")
    last = model.config.vocab_size - 1
    if int(batch.tokens.max()) > last:
        raise FeatherbackError(f"A token id is {batch.tokens.max()}; the model knows 0 to {last}.")
    wanted = batch.targets[batch.targets != IGNORE]
    if wanted.size and not 0 <= wanted.min() <= wanted.max() <= last:
        wrong = wanted.min() if wanted.min() < 0 else wanted.max()
        raise FeatherbackError(
            f"A label is {wrong}; it must be a token id, 0 to {last}, or {IGNORE} (not trained)."
        )
    if compute not in COMPUTE:
        raise FeatherbackError(f"Unknown compute {compute!r}; choose from {', '.join(COMPUTE)}.")
    if not batch.n_targets:
        raise FeatherbackError(
            "No token is trained: every label is -100, or the sequences have one token each."
        )
    plan = Plan.default(model.config, tokens=batch.n_tokens, compute=compute)
    parameters = adapter.parameters
    gathered = PagedArray(parameters.layers, parameters.size)
    total = methods.create(method, model, adapter, plan).gradients(batch, 1 / batch.n_targets, gathered)
    return total / batch.n_targets, adapter.state(gathered)


def train(
    model: Model | str | os.PathLike[str],
    data: str | os.PathLike[str] | Examples,
    out: str | os.PathLike[str],
    *,
    eval_data: str | os.PathLike[str] | Examples | None = None,
    memory: str | int | None = None,
    resume: bool = False,
    progress: bool = True,
    **options: Any,
) -> Run:
    """Train a LoRA adapter in this process, as `featherback train` does in one of its own.

    `data`: a file, token lists, or (tokens, labels) pairs. `memory`: "96MB", or bytes. `options`: the fields
    of TrainConfig (steps, epochs, rank, alpha, targets, seq_len, batch_size, accumulate, learning_rate,
    optimizer, schedule, warmup, compute, threads, seed, ...), the optimiser's own (beta1, weight_decay, ...) and the
    method's (epsilon, ...). `nice` lowers the priority of this process for good.
    FeatherbackError says what is wrong.
    Ctrl-C saves and then raises KeyboardInterrupt; `resume=True` continues: options that are not named are the run's,
    and the data must be those that it was begun with.
    """
    opened = model if isinstance(model, Model) else load(model)
    reporter = TextReporter() if progress else Reporter()
    named: dict[str, Any] = {
        "model": str(opened.path),
        "data": _path_of(data),
        "eval_data": _path_of(eval_data),
        "out": str(Path(out)),
        "memory": memory,
        **options,
    }
    examples: dict[str, Any] = {
        "data": None if _is_path(data) else data,
        "eval_data": None if _is_path(eval_data) else eval_data,
        "model": opened,
        "baseline": rehearsed_baseline,
    }
    if resume:
        run = resume_run(named, **examples, note=reporter.note)
    else:
        run = prepare_run(TrainConfig.of(**named), **examples)
    status = train_run(run, reporter, opened)
    if status == "interrupted":
        raise KeyboardInterrupt
    return Run(run, opened)


def plan(model: Model | str | os.PathLike[str], *, memory: str | int | None = None, **options: Any) -> Plan:
    """How `featherback train` with these options would lay out its memory, and the predicted peaks.

    `memory` and `options` as for `train`. FeatherbackError, naming what would do, if nothing fits.
    """
    opened = model if isinstance(model, Model) else load(model)
    config = TrainConfig.of(model=str(opened.path), data="", out="", memory=memory, **options)
    config = config.for_model(opened)
    return plan_for(config, opened, worker_baseline)


def _batch(tokens: Any, labels: Any) -> Batch:
    """One sequence, or a list of them, as a batch."""
    single = _is_single(tokens)
    if labels is None:
        return Batch.from_sequences([tokens] if single else list(tokens))
    if _is_single(labels) != single:
        raise FeatherbackError("Labels must be given like the tokens: one list, or a list of lists.")
    return Batch.from_sequences([tokens] if single else list(tokens), [labels] if single else list(labels))


def _is_single(tokens: Any) -> bool:
    """One sequence of ids, not a list of sequences."""
    if not hasattr(tokens, "__len__"):
        raise FeatherbackError(f"Tokens and labels must be lists or arrays, not {type(tokens).__name__}.")
    return len(tokens) > 0 and np.ndim(tokens[0]) == 0


def _path_of(source: object) -> str | None:
    """How a source of data is recorded: its path, or that it was given as tokens."""
    if source is None:
        return None
    return str(source) if _is_path(source) else "tokens"


def _is_path(source: object) -> bool:
    return isinstance(source, (str, os.PathLike))
