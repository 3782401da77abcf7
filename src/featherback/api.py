"""The public functions. `featherback/__init__.py` brings them in when they are first used."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from featherback import methods, models
from featherback.core.naming import argument
from featherback.data.batch import IGNORE, Batch
from featherback.data.source import Source, columns_of
from featherback.engine import kernels
from featherback.engine.host.paged import PagedArray
from featherback.errors import FeatherbackError, shown
from featherback.exports.formats import form
from featherback.methods.memory.plan import Plan
from featherback.model import Adapter, Model
from featherback.model import opened as opened_adapter
from featherback.models import lora
from featherback.runs.callback import Callback, Guarded, Together
from featherback.runs.choose import plan_for
from featherback.runs.computed import compute_of
from featherback.runs.config import TrainConfig
from featherback.runs.evaluation import Evaluation, evaluate_file
from featherback.runs.events import Note
from featherback.runs.given import Examples
from featherback.runs.launch import prepare_run, resume_run
from featherback.runs.names import default_of, fields_of, grouped, known, python_names, python_type, told
from featherback.runs.outcome import verdict
from featherback.runs.panels.run import AUTO
from featherback.runs.rehearsal import rehearsed_baseline
from featherback.runs.run import Run
from featherback.runs.run_directory import RunDirectory
from featherback.runs.trainer import train_run
from featherback.runs.worker_process import worker_baseline
from featherback.view.show import draw, reporter

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from featherback.exports.targets.base import Exported
    from featherback.runs.options import TrainOptions

Tokens = npt.ArrayLike
Data = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Examples

F = TypeVar("F", bound=Callable[..., Any])


def _with_names(function: F) -> F:
    """The function with its `**options` by name, default and meaning where these are asked for at run time: by `help`,
    and by what completes names in a notebook.
    """
    signature = inspect.signature(function)
    own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    taken = {each.name for each in own}
    found, lines = [], ["", "Options:"]
    for field in chain.from_iterable(grouped().values()):
        name, kind = python_names(field)[0], python_type(field)
        default, (meant, shown) = default_of(known()[field][0], field), told(field)
        if name not in taken and field not in taken:
            found.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind))
            lines.append(f"    {name}: {meant}" + (f" Default: {shown}." if shown else ""))
    function.__signature__ = signature.replace(parameters=[*own, *found])  # type: ignore[attr-defined]
    function.__doc__ = f"{inspect.getdoc(function)}\n" + "\n".join(lines)
    return function


def load(model: str | os.PathLike[str], quantize: str = "none") -> Model:
    """Open a model (weights stay on disk): a GGUF file, a Hugging Face or MLX folder, or a fetched name.

    `quantize` (q4_0, q8_0): the weights of a Hugging Face folder are quantised into a file in the cache, once.
    """
    from featherback.models.hub.locate import locate

    return models.load(locate(os.fspath(model)), quantize, kind=Model)


def gradients(
    model: models.Model,
    adapter: lora.Adapter,
    tokens: Tokens | Sequence[Tokens],
    labels: Tokens | Sequence[Tokens] | None = None,
    method: str = "mesp",
    compute: str = "fp32",
) -> tuple[float, dict[str, npt.NDArray[np.float32]]]:
    """The mean loss (nats per token) and its gradient with respect to every trained tensor of the adapter.

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
        raise FeatherbackError(f"A label is {wrong}; it must be a token id, 0 to {last}, or {IGNORE} (not trained).")
    kernels.check_compute(compute)
    if not batch.n_targets:
        raise FeatherbackError("No token is trained: every label is -100, or the sequences have one token each.")
    plan = Plan.default(model.config, tokens=batch.n_tokens, compute=compute)
    parameters = adapter.parameters
    gathered = PagedArray(parameters.layers, parameters.size)
    total = methods.create(method, model, adapter, plan).gradients(batch, 1 / batch.n_targets, gathered)
    return total / batch.n_targets, adapter.state(gathered)


@_with_names
def train(
    model: models.Model | str | os.PathLike[str],
    data: Data | None = None,
    out: str | os.PathLike[str] | None = None,
    *,
    eval_data: Data | None = None,
    memory: str | float | None = None,
    resume: bool = False,
    progress: bool = True,
    callbacks: Iterable[Callback] = (),
    **options: Unpack[TrainOptions],
) -> Run:
    """Train an adapter (LoRA or DoRA), or a model's own weights, as `featherback train` does, but in this process.

    `data`: a file or several; or a list of conversations, which are lists of messages ({"role": ..., "content": ...}),
    of (prompt, completion) tuples, or of other records as a data file has them; or of token lists, or (tokens, labels)
    pairs. `out`: the run's new directory. `memory`: "96MB", or megabytes. `options`: those of the command line by their
    names there (lr, steps, seq_len, ...; start for --from), the optimiser's own (beta1, ...) and the method's
    (epsilon, ...) among them. `callbacks` are told what happens; one that raises ends the run with a FeatherbackError.
    `nice` lowers the priority of this process for good.
    FeatherbackError says what is wrong.
    Ctrl-C saves and then raises KeyboardInterrupt; `resume=True` continues the run in `out`: options that are
    not named are the run's, and so are the data; data that are named must be those that it was begun with.
    """
    if out is None:
        raise FeatherbackError(f"{argument('out')} is missing: name a new directory, or that of a run to resume.")
    asked = {name: value for name, value in options.items() if value is not None or not resume}
    named_options = fields_of({**asked, "memory": memory}, "featherback.train")
    if resume and not isinstance(model, models.Model):
        named_options.setdefault("quantize", RunDirectory.open(Path(out)).config.quantize)
    _check_data(data)
    opened = _opened(model, named_options)
    shown = Together([reporter() if progress else Callback(), *map(_guarded, callbacks)])
    named: dict[str, Any] = {
        "model": str(opened.path),
        "data": _paths_of(data),
        "eval_data": _paths_of(eval_data),
        "out": str(Path(out)),
        **named_options,
    }
    examples: dict[str, Any] = {
        "data": None if _is_paths(data) else data,
        "eval_data": None if _is_paths(eval_data) else eval_data,
        "model": opened,
        "baseline": lambda: rehearsed_baseline().settled(process="here"),
    }
    if resume:
        run = resume_run(named, **examples, note=lambda text: shown.tell(Note(text)))
    else:
        run = prepare_run(TrainConfig.of(**named), **examples)
    status = train_run(run, shown, opened, draw=draw)
    if status == "interrupted":
        raise KeyboardInterrupt
    found = Run(run, opened)
    if found.worse:
        changed = ", ".join(f"{name}={value:g}" for name, value in found.summary["recommended"].items())
        advice = f"Train again with {changed}, and another `out`."
        warnings.warn(verdict(run.record, advice), stacklevel=2)
    return found


def evaluate(
    model: models.Model | str | os.PathLike[str],
    data: Data,
    *,
    adapter: Adapter | None = None,
    seq_len: int | None = None,
    cut: bool = False,
    map: str | Sequence[str] | None = None,
    skip_bad: bool = False,
    quantize: str | None = None,
    compute: str = AUTO,
    threads: int | None = None,
) -> Evaluation:
    """The loss (nats per token) and the perplexity of a model, with or without an adapter, on data.

    Only the tokens that training would train count: the assistant's answers, completions, or all of a plain text.
    `data` as for `train`. `adapter`: a run, an adapter, or where one lies. `seq_len`: tokens into which texts are cut,
    None for what the data need; `cut`: cut what is longer than the model allows, instead of refusing it. `compute`:
    "auto" is what the run computed in, bf16 without a run. FeatherbackError for data, an option or an adapter that
    cannot be used.
    """
    named = fields_of(
        {"seq_len": seq_len, "cut": cut, "map": map, "skip_bad": skip_bad, "compute": compute, "threads": threads},
        "featherback.evaluate",
    )
    opened = _opened(model, {} if quantize is None else {"quantize": quantize})
    kernels.set_threads(named["threads"] or kernels.default_threads())
    place = adapter.path if isinstance(adapter, Run) else adapter
    places = [opened.path] if place is None or isinstance(place, lora.Adapter) else [opened.path, os.fspath(place)]
    examples: Any = None if _is_paths(data) else data
    paths = (_paths_of(data) or ()) if examples is None else ()
    return evaluate_file(
        opened,
        Source(paths, columns_of(named["columns"] or ()), named["skip_bad"]),
        opened_adapter(opened, adapter),
        named["seq_len"],
        compute_of(named["compute"], *places),
        named["cut"],
        examples,
    )


def export(
    adapter: Run | str | os.PathLike[str],
    to: str,
    *,
    out: str | os.PathLike[str] | None = None,
    model: models.Model | str | os.PathLike[str] | None = None,
    type: str | None = None,
    base_model: str | None = None,
    force: bool = False,
) -> Exported:
    """Take a run's result, or an adapter, to another program.

    `adapter`: a run, its directory, or where an adapter lies. `to`: "gguf", "merged", "mlx", "ollama" or "peft". `out`:
    what to write, None for a place beside the adapter. `model`: the base, None for the one that it was trained on.
    `type`: the number format of what is written ("q8_0", "f16", ...), None for the target's choice. `base_model`: what
    the adapter calls its base. `force`: replace what is there. The result has the `path` of what was written, and in
    `next` the command to type next. FeatherbackError for what does not fit together, or cannot be written.
    """
    from featherback.runs.exporting import export as exported  # with every format, which training does without

    source = adapter.path if isinstance(adapter, Run) else Path(adapter)
    base = str(model.path) if isinstance(model, models.Model) else model
    if base is None and isinstance(adapter, Run):
        base = str(adapter.model.path)
    place = None if out is None else Path(out)
    return exported(source, to, None if base is None else os.fspath(base), place, type, base_model, force)


def merge(
    adapter: Run | str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    model: models.Model | str | os.PathLike[str] | None = None,
    type: str | None = None,
    force: bool = False,
) -> Exported:
    """Write a model with an adapter in its weights: `export` to "merged". Its `notes` say what storing it cost.

    A GGUF file, or a Hugging Face folder where the base is one; `featherback.load` opens it. Arguments and
    FeatherbackError as for `export`.
    """
    return export(adapter, "merged", out=out, model=model, type=type, force=force)


@_with_names
def plan(
    model: models.Model | str | os.PathLike[str], *, memory: str | float | None = None, **options: Unpack[TrainOptions]
) -> Plan:
    """How `featherback train` with these options would lay out its memory, and the predicted peaks.

    `memory` and `options` as for `train`: those that it does not depend on are checked, and change nothing.
    FeatherbackError, naming what would do, if nothing fits.
    """
    named = fields_of({**options, "memory": memory}, "featherback.plan")
    opened = _opened(model, named)
    config = TrainConfig.of(model=str(opened.path), out="", **named)
    if config.start is not None:
        config = config.starting_from(form(opened, config.start), opened)
    config = config.for_model(opened)
    return plan_for(config, opened, worker_baseline)


def _guarded(callback: Callback) -> Guarded:
    if not isinstance(callback, Callback):
        raise FeatherbackError(
            f"callbacks holds {callback!r}, which is no featherback.Callback; pass instances of a subclass of it."
        )
    return Guarded(callback)


def _opened(model: models.Model | str | os.PathLike[str], options: dict[str, Any]) -> models.Model:
    """The model, and its `quantize` among the options of which it is one."""
    opened = model if isinstance(model, models.Model) else load(model, options.get("quantize", "none"))
    if options.setdefault("quantize", opened.quantize) != opened.quantize:
        raise FeatherbackError(
            f"The model {opened.path} is opened with quantize={opened.quantize!r}, not {options['quantize']!r}."
        )
    return opened


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


def _paths_of(source: Any) -> tuple[str, ...] | None:
    """How a source of data is recorded: its paths, or that it was given as tokens."""
    if source is None:
        return None
    if not _is_paths(source):
        return ("tokens",)
    return (str(source),) if isinstance(source, (str, os.PathLike)) else tuple(map(str, source))


def _check_data(data: object) -> None:
    """FeatherbackError for a prompt and its completion that are not in a list, which would be taken for two files."""
    if not (isinstance(data, tuple) and len(data) == 2 and all(isinstance(text, str) for text in data)):
        return
    if not any(os.path.exists(text) for text in data):
        raise FeatherbackError(
            f"data={shown(data)} names two files that do not exist; give examples as a list of (prompt, completion) "
            f"tuples: data=[{shown(data)}]."
        )


def _is_paths(source: object) -> bool:
    """A path, or a list of them."""
    if isinstance(source, (list, tuple)):
        return bool(source) and all(isinstance(each, (str, os.PathLike)) for each in source)
    return isinstance(source, (str, os.PathLike))
