"""The public functions. `featherback/__init__.py` imports them on first use."""

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
from featherback.data.general import INSTRUCTIONS, TEXT
from featherback.data.source import Source, columns_of, table_options
from featherback.engine import backend, kernels
from featherback.engine.budget import BudgetError
from featherback.errors import FeatherbackError, excerpt
from featherback.exports.formats import form
from featherback.methods.memory.plan import Plan
from featherback.model import Adapter, Model
from featherback.models import adapter as adapters
from featherback.runs.by_name import fields_of
from featherback.runs.callback import Callback, CallbackList, GuardedCallback
from featherback.runs.choose import plan_for
from featherback.runs.comparing import GENERAL, Comparison, check_metrics, compared, least_of, names_of
from featherback.runs.compute import resolve_compute
from featherback.runs.config import TrainConfig
from featherback.runs.evaluating import evaluate_data
from featherback.runs.evaluation import Evaluation
from featherback.runs.events import Note
from featherback.runs.examples import Examples
from featherback.runs.judging import Judging, judging_fields, judging_of, rewards_of
from featherback.runs.names import combined, default_of, grouped, known, python_names, python_type
from featherback.runs.outcome import worse_message
from featherback.runs.panels.optimisation import NEXT_TOKEN
from featherback.runs.panels.run import AUTO
from featherback.runs.preparation import prepare_run, resume_run
from featherback.runs.rehearsal import rehearsed_baseline
from featherback.runs.rewards.judge import Function
from featherback.runs.rewards.written import PYTHON
from featherback.runs.run import Run
from featherback.runs.run_directory import RUN_FILE, RunDirectory
from featherback.runs.teacher import teacher_plan, with_teacher
from featherback.runs.trainer import train_run
from featherback.runs.worker_process import worker_baseline
from featherback.view.show import draw, reporter

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from featherback.exports.formats.base import Exported
    from featherback.infer.classify import Classified
    from featherback.infer.prompt import Prompt
    from featherback.runs.options import TrainOptions

Tokens = npt.ArrayLike
Data = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Examples

Rewards = str | Function | Sequence[str | Function]
"""What judges answers: rewards as on the command line, and functions (answer, record) -> number."""

F = TypeVar("F", bound=Callable[..., Any])


def _with_names(function: F) -> F:
    """Give the function a signature and docstring with all options, for `help` and for completion in notebooks."""
    signature = inspect.signature(function)
    own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    taken = {each.name for each in own}
    found, lines = [], ["", "Options:"]
    for field in chain.from_iterable(grouped().values()):
        name, kind = python_names(field)[0], python_type(field)
        default, about = default_of(known()[field][0], field), combined(field)
        if name not in taken and field not in taken:
            found.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind))
            shown = about.default_in_words
            lines.append(f"    {name}: {about.meaning}" + (f" Default: {shown}." if shown else ""))
    function.__signature__ = signature.replace(parameters=[*own, *found])  # type: ignore[attr-defined]
    function.__doc__ = f"{inspect.getdoc(function)}\n" + "\n".join(lines)
    return function


def load(model: str | os.PathLike[str], quantize: str = "none") -> Model:
    """Open a model. Its weights stay on disk.

    `model`: a GGUF file, a Hugging Face or MLX folder, or a name from `featherback models`. `quantize`: "q4_0" or
    "q8_0" quantises the weights of a Hugging Face folder; the result is cached. Raises FeatherbackError if the model
    cannot be opened.
    """
    from featherback.models.hub.locate import locate

    return models.load(locate(os.fspath(model)).absolute(), quantize, kind=Model)


def gradients(
    model: models.Model,
    adapter: adapters.Adapter,
    tokens: Tokens | Sequence[Tokens],
    labels: Tokens | Sequence[Tokens] | None = None,
    method: str = "mesp",
    compute: str = "fp32",
) -> tuple[float, dict[str, npt.NDArray[np.float32]]]:
    """Compute the mean loss and its gradient with respect to every trained tensor of the adapter.

    `tokens`: token ids of shape (T,), or a list of such sequences; attention does not cross from one sequence to the
    next. `labels`: token ids aligned with `tokens`, -100 where no loss is computed; None for next-token labels.

    Returns the loss in nats per token, and the gradients by their names in Hugging Face's layout:
    {"model.layers.0.self_attn.q_proj.lora_A.weight": float32 of shape (r, in), ...}. Raises FeatherbackError for token
    ids or labels outside the vocabulary, and for sequences that are too long.
    """
    batch = _batch(tokens, labels)
    longest, room = int(np.diff(batch.cu_seqlens).max()), model.config.max_position_embeddings
    if longest > room:
        raise FeatherbackError(f"A sequence has {longest} tokens; the model supports at most {room}.")
    last = model.config.vocab_size - 1
    if int(batch.tokens.max()) > last:
        raise FeatherbackError(f"A token id is {batch.tokens.max()}; it must be 0 to {last}.")
    wanted = batch.targets[batch.targets != IGNORE]
    if wanted.size and not 0 <= wanted.min() <= wanted.max() <= last:
        wrong = wanted.min() if wanted.min() < 0 else wanted.max()
        raise FeatherbackError(f"A label is {wrong}; it must be a token id, 0 to {last}, or {IGNORE} for no loss.")
    kernels.check_compute(compute)
    if not batch.n_targets:
        raise FeatherbackError("There is nothing to train: every label is -100, or every sequence has only one token.")
    plan = Plan.default(model.config, tokens=batch.n_tokens, compute=compute)
    parameters = adapter.parameters
    gathered = parameters.zeros_like(parameters.size)
    total = methods.create(method, model, adapter, plan).gradients(batch, 1 / batch.n_targets, gathered)
    return total / batch.n_targets, adapter.state(gathered)


@_with_names
@backend.restored()
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
    """Train an adapter, or with train="full" a copy of the whole model, in this process.

    `data`: one or more files; or a list of conversations (each a list of {"role": ..., "content": ...} messages), of
    (prompt, completion) tuples, of other records as in a data file, of token lists, or of (tokens, labels) pairs.
    `out`: a new directory for the run. `memory`: the budget, as "96MB" or in megabytes. `options`: the options of
    `featherback train` with underscores (lr, steps, seq_len; start for --from). Other tools' names, such as lora_r, are
    accepted too. `callbacks` receive the events of the run; an exception in a callback ends the run with a
    FeatherbackError. `reward`: what judges answers that the model writes, as on the command line, or functions (answer,
    record) -> number; of several, the sum counts. `nice` lowers the priority of this process permanently.

    `resume=True` continues the run in `out` with its own options and data. Other options may be given only if a resumed
    run can change them, and data only if they are the same. Ctrl-C saves the run and raises KeyboardInterrupt.

    FeatherbackError describes a mistake in the arguments or the data.
    """
    asked: dict[str, Any] = {name: value for name, value in options.items() if value is not None or not resume}
    written, functions = _rewards(asked.pop("reward", None))
    if written is not None:
        asked["reward"] = written
    directory = {} if out is None else {"out": os.fspath(out)}
    named_options = fields_of({**directory, **asked, "memory": memory}, "featherback.train")
    out = named_options.pop("out", None)
    if out is None:
        raise FeatherbackError(
            f"{argument('out')} is missing. Add a new directory, or the directory of a run to resume."
        )
    if resume and not isinstance(model, models.Model):
        named_options.setdefault("quantize", RunDirectory.open(Path(out)).config.quantize)
    for each in (data, eval_data):
        _check_data(each)
    opened = _opened(model, named_options)
    shown = CallbackList([reporter() if progress else Callback(), *_guarded(callbacks)])
    named: dict[str, Any] = {
        "model": str(opened.path),
        "data": _paths_of(data),
        "eval_data": _paths_of(eval_data),
        "out": str(Path(out).absolute()),
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
    status = train_run(run, shown, opened, draw=draw, rewards=functions)
    if status == "interrupted":
        raise KeyboardInterrupt
    found = Run(run, opened)
    if found.worse:
        changed = ", ".join(f"{name}={value:g}" for name, value in found.summary.recommended.items())
        advice = f"Train again with {changed}, and another `out`."
        warnings.warn(worse_message(run.record, advice), stacklevel=3)  # through `restored`
    return found


def open_run(
    path: str | os.PathLike[str], *, model: models.Model | str | os.PathLike[str] | None = None
) -> Run:  # fmt: skip
    """Open the directory of an earlier run: the same object that `train` returned.

    `model`: the base model, None for the one that the run records. It is opened when it is needed. Raises
    FeatherbackError if `path` is not a run.
    """
    directory = RunDirectory.open(Path(path).absolute())
    return Run(directory, None if model is None else _opened(model, {"quantize": directory.config.quantize}), Model)


def classify(
    model: models.Model | Run | str | os.PathLike[str],
    texts: Prompt | Sequence[Prompt],
    *,
    adapter: Adapter | None = None,
    chat: bool | None = None,
    compute: str = "bf16",
    memory: int | str | None = None,
) -> list[Classified]:
    """Give texts their labels, or their rewards, with a model and an adapter of `train(objective="classify")`.

    `model`: the run of a classifier or its directory, which has a model and an adapter; or a model. The rest is as for
    `Model.classify`.
    """
    if not isinstance(model, (models.Model, Run)) and (Path(model) / RUN_FILE).is_file():
        model = open_run(model)
    if isinstance(model, Run):
        adapter = model if adapter is None else adapter
        model = model.model
    if adapter is None:
        raise FeatherbackError(
            f"adapter is missing: {excerpt(str(model))} is not a run. Pass the run of a classifier, or its directory."
        )
    opened = _opened(model, {})
    reads = opened if isinstance(opened, Model) else load(opened.path, opened.quantize)
    return reads.classify(texts, adapter=adapter, chat=chat, compute=compute, memory=memory)


def evaluate(
    model: models.Model | str | os.PathLike[str],
    data: Data,
    *,
    adapter: Adapter | None = None,
    seq_len: int | None = None,
    cut: bool = False,
    map: str | Sequence[str] | None = None,
    table: str | Sequence[str] | None = None,
    me: str | Sequence[str] | None = None,
    skip_bad: bool = False,
    quantize: str | None = None,
    compute: str = AUTO,
    threads: int | None = None,
    memory: int | str | None = None,
    objective: str = NEXT_TOKEN,
    reward: Rewards | None = None,
    answer_tokens: int = 128,
    reward_seconds: float = 10.0,
    reward_memory: int = 512,
) -> Evaluation:
    """Measure the loss (nats per token) and the perplexity of a model on data, with or without an adapter.

    Only supervised tokens count: the assistant's answers, completions, or the whole of a plain text. `data`: as for
    `train`. `adapter`: a run, an adapter, or its path. `seq_len`: maximum sequence length, None for the longest
    example; longer texts are split. `cut`: truncate longer chats, and do not reject them. `compute`: "auto" is the
    format in which the run was trained, and bf16 without a run. `memory`: the most that this process may hold, as for
    `train`; weights are then read from the disk as needed. `objective`: "dpo" or another one for pairs of answers
    measures how often the better answer wins, with the model without the adapter as the reference. `reward`: as for
    `train`; the model then writes an answer of at most `answer_tokens` tokens to each prompt of the data, and the mean
    reward is measured. Raises
    FeatherbackError for unusable arguments.
    """
    values = {
        "objective": objective, "seq_len": seq_len, "cut": cut, "map": map, "table": table, "me": me,
        "skip_bad": skip_bad, "compute": compute, "threads": threads, "answer_tokens": answer_tokens,
        "reward_seconds": reward_seconds, "reward_memory": reward_memory, "memory": memory, "quantize": quantize,
    }  # fmt: skip
    written, functions = _rewards(reward)
    named = _evaluation_options({**values, "reward": written}, "featherback.evaluate")
    judging = judging_of(
        rewards_of(
            named["reward"], named["objective"], named["answer_tokens"], named["reward_seconds"], named["reward_memory"]
        )
    )
    return _evaluated(model, data, adapter, named, judging, functions)


def compare(
    model: models.Model | str | os.PathLike[str],
    data: Data,
    *,
    adapters: Sequence[Adapter] = (),
    against: Sequence[models.Model | str | os.PathLike[str]] = (),
    reward: Rewards | None = None,
    at_least: Sequence[str] = (),
    seq_len: int | None = None,
    cut: bool = False,
    map: str | Sequence[str] | None = None,
    table: str | Sequence[str] | None = None,
    me: str | Sequence[str] | None = None,
    skip_bad: bool = False,
    quantize: str | None = None,
    compute: str = AUTO,
    threads: int | None = None,
    memory: int | str | None = None,
    answer_tokens: int = 128,
    reward_seconds: float = 10.0,
    reward_memory: int = 512,
    general: bool = True,
) -> Comparison:
    """Compare the answers of a model with those of adapters, and of the models `against`, on held-out data.

    Each writes the likeliest answer to every prompt. `reward`: the metrics, as for `evaluate`; None for those that suit
    the right answers in the data. `general`: also measure what was forgotten, on a fixed text and fixed instructions.
    The other options are those of `evaluate`. The result has all answers, the mean of
    each metric, the held-out losses, and the differences from `model` with intervals of 95 %. Raises FeatherbackError
    for unusable arguments, or if a metric does not reach its value in `at_least`: ["token_f1=0.6"].
    """
    values = {
        "seq_len": seq_len, "cut": cut, "map": map, "table": table, "me": me, "skip_bad": skip_bad, "compute": compute,
        "threads": threads, "answer_tokens": answer_tokens, "reward_seconds": reward_seconds,
        "reward_memory": reward_memory, "memory": memory, "quantize": quantize, "objective": NEXT_TOKEN,
    }  # fmt: skip
    written, functions = _rewards(reward)
    named, least = _evaluation_options({**values, "reward": written}, "featherback.compare"), least_of(at_least)
    asked = tuple(named["reward"] or ())
    if not functions:
        check_metrics(least, asked)
    places: list[tuple[Any, Any]] = [(model, None), *((model, each) for each in adapters)]
    places += [(each, None) for each in against]
    named["compute"] = resolve_compute(
        named["compute"], *(path for each in [model, *adapters] if (path := _path_of(each)) is not None)
    )
    judging = judging_of(judging_fields(asked, named["answer_tokens"], named["reward_seconds"], named["reward_memory"]))
    fixed = {**named, "seq_len": None, "columns": None, "table": None, "me": None}
    answers = [_evaluated(place, data, own, named, judging, functions) for place, own in places]
    losses, note = list[Evaluation | None](), None
    try:
        losses = [_evaluated(place, data, own, named, None, {}) for place, own in places]
    except BudgetError:
        raise
    except FeatherbackError as error:  # data with nothing whose loss could be measured
        losses, note = [None] * len(places), str(error)
    asked_of = judging_of({**judging_fields((), 1, 1.0, 512), **GENERAL})
    kept = [
        (_evaluated(place, INSTRUCTIONS, own, fixed, asked_of, {}), _evaluated(place, TEXT, own, fixed, None, {}))
        for place, own in places
        if general and len(places) > 1
    ]
    names = [(_path_of(place) or place, None if own is None else _path_of(own) or "adapter") for place, own in places]
    found = compared(names_of(names), answers, losses, kept, note)
    if (below := found.below(least)) is not None:
        raise FeatherbackError(below)
    return found


def _evaluation_options(values: dict[str, Any], function: str) -> dict[str, Any]:
    """Return the options of an evaluation under their names in a run; `quantize` only if it was given."""
    quantize = values.pop("quantize")
    return {**fields_of(values, function), **({} if quantize is None else {"quantize": quantize})}


def _evaluated(
    model: models.Model | str | os.PathLike[str], data: Data, adapter: Adapter | None, named: dict[str, Any],
    judging: Judging | None, functions: dict[str, Function],
) -> Evaluation:  # fmt: skip
    """Measure a model with these options, whose names are those of a run."""
    _check_data(data)
    opened = _opened(model, {"quantize": named["quantize"]} if "quantize" in named else {})
    kernels.set_threads(named["threads"] or kernels.default_threads())
    place = None if adapter is None else _path_of(adapter)
    examples: Any = None if _is_paths(data) else data
    paths = (_paths_of(data) or ()) if examples is None else ()
    return evaluate_data(
        opened,
        Source(
            paths,
            columns_of(named["columns"] or ()),
            named["skip_bad"],
            table=table_options(named["table"] or ()),
            me=named["me"] or (),
        ),
        adapter.adapter_path if isinstance(adapter, Run) else adapter,
        named["seq_len"],
        resolve_compute(named["compute"], opened.path, *([] if place is None else [place])),
        named["cut"],
        examples,
        named["memory"],
        named["objective"],
        judging=judging,
        functions=functions,
    )


def _path_of(given: Any) -> str | None:
    """Return where a model, a run or an adapter is; None for an adapter that is in no file."""
    if isinstance(given, adapters.Adapter):
        return None
    return str(given.path) if isinstance(given, (Run, models.Model)) else os.fspath(given)


def _rewards(given: Any) -> tuple[Any, dict[str, Function]]:
    """Return rewards as text, and the functions among them by name. What is neither is left to the option's check."""
    each = [given] if callable(given) else given if isinstance(given, (list, tuple)) else []
    functions = {str(getattr(one, "__name__", "reward")): one for one in each if callable(one)}
    if len(functions) < sum(map(callable, each)):
        raise FeatherbackError("Two functions in reward have the same name. Rename one of them.")
    names = {id(one): f"{PYTHON}:{name}" for name, one in functions.items()}
    return [names.get(id(one), one) for one in each] if functions else given, functions


def export(
    adapter: Adapter,
    to: str,
    *,
    out: str | os.PathLike[str] | None = None,
    model: models.Model | str | os.PathLike[str] | None = None,
    type: str | None = None,
    base_model: str | None = None,
    force: bool = False,
) -> Exported:
    """Export a run's result, or an adapter, for another program.

    `adapter`: a run, its directory, an adapter, or its path. `to`: "gguf", "merged", "mlx", "ollama" or "peft". `out`:
    the file or folder to write, None for one beside the adapter; an adapter that is not in a file needs it. `model`:
    the base model, None for the one that the adapter was trained on. `type`: number format of the result ("q8_0",
    "f16", ...), None for the target's default.
    `base_model`: name of the base model to write into the adapter. `force`: overwrite an existing file or folder.

    The result has the `path` that was written, and in `next` the command to type next. Raises FeatherbackError if
    adapter and model do not fit together, or if the result cannot be written.
    """
    from featherback.runs.exporting import export as exported  # imports every format, which training does not need

    source: Path | adapters.Adapter
    if isinstance(adapter, adapters.Adapter):
        source = adapter
    else:
        source = adapter.path if isinstance(adapter, Run) else Path(adapter)
    base = str(model.path) if isinstance(model, models.Model) else model
    if base is None and isinstance(adapter, Run):
        base = str(adapter.model.path)
    place = None if out is None else Path(out)
    return exported(source, to, None if base is None else os.fspath(base), place, type, base_model, force)


def merge(
    adapter: Adapter,
    *,
    out: str | os.PathLike[str] | None = None,
    model: models.Model | str | os.PathLike[str] | None = None,
    type: str | None = None,
    force: bool = False,
) -> Exported:
    """Merge an adapter into its base model and write the model: the same as `export` to "merged".

    The result is a GGUF file, or a Hugging Face folder if the base model is one. `featherback.load` opens it. Its
    `notes` report how much precision was lost. The arguments are those of `export`. Raises FeatherbackError as
    `export` does.
    """
    return export(adapter, "merged", out=out, model=model, type=type, force=force)


@_with_names
@backend.restored()
def plan(
    model: models.Model | str | os.PathLike[str], *, memory: str | float | None = None, **options: Unpack[TrainOptions]
) -> Plan:
    """Plan the memory of `featherback train` with these options, and predict its peaks.

    `memory` and `options`: as for `train`. Options that do not affect memory are checked and ignored. FeatherbackError,
    with a budget that is large enough, if training does not fit.
    """
    named = fields_of({**options, "memory": memory}, "featherback.plan")
    named.pop("out", None)
    opened = _opened(model, named)
    config = with_teacher(TrainConfig.of(model=str(opened.path), out="", **named), opened)
    if config.start is not None:
        config = config.starting_from(form(opened, config.start), opened)
    config = config.for_model(opened)
    found = plan_for(config, opened, worker_baseline)
    if config.teacher is not None:
        teacher_plan(config, models.load(config.teacher), found.compute, worker_baseline)  # its pass must fit, too
    return found


def _guarded(callbacks: Iterable[Callback]) -> list[GuardedCallback]:
    if not isinstance(callbacks, Iterable):
        raise FeatherbackError(f"callbacks={callbacks!r}; it must be a list, such as callbacks=[{callbacks!r}].")
    given = list(callbacks)
    for callback in given:
        if not isinstance(callback, Callback):
            raise FeatherbackError(
                f"callbacks contains {callback!r}; it must contain instances of subclasses of featherback.Callback."
            )
    return [GuardedCallback(callback) for callback in given]


def _opened(model: models.Model | str | os.PathLike[str], options: dict[str, Any]) -> models.Model:
    """Return the opened model, and add its `quantize` to the options."""
    opened = model if isinstance(model, models.Model) else load(model, options.get("quantize", "none"))
    if options.setdefault("quantize", opened.quantize) != opened.quantize:
        raise FeatherbackError(
            f"The model {opened.path} was loaded with quantize={opened.quantize!r}, not {options['quantize']!r}."
        )
    return opened


def _batch(tokens: Any, labels: Any) -> Batch:
    """Return a batch made of one sequence, or of a list of sequences."""
    single = _is_single(tokens)
    if labels is None:
        return Batch.from_sequences([tokens] if single else list(tokens))
    if _is_single(labels) != single:
        raise FeatherbackError("Labels must be given like the tokens: as one list, or as a list of lists.")
    return Batch.from_sequences([tokens] if single else list(tokens), [labels] if single else list(labels))


def _is_single(tokens: Any) -> bool:
    """Whether `tokens` is one sequence of ids, and not a list of sequences."""
    if not hasattr(tokens, "__len__"):
        raise FeatherbackError(f"Tokens and labels must be lists or arrays, not {type(tokens).__name__}.")
    return len(tokens) > 0 and np.ndim(tokens[0]) == 0


def _paths_of(source: Any) -> tuple[str, ...] | None:
    """The paths by which a run records its data; ("tokens",) if the data are not files."""
    if source is None:
        return None
    if not _is_paths(source):
        return ("tokens",)
    return (str(source),) if isinstance(source, (str, os.PathLike)) else tuple(map(str, source))


def _check_data(data: object) -> None:
    """Raise FeatherbackError for texts that are not names of files: one, a list of them, or a tuple outside a list."""
    texts = [data] if isinstance(data, str) else data
    if not isinstance(texts, (list, tuple)) or not texts or not all(isinstance(text, str) for text in texts):
        return
    pair = isinstance(data, tuple) and len(data) == 2
    if any(map(os.path.exists if pair else _may_be_a_file, texts)):
        return
    if pair:
        remedy = f"Put the (prompt, completion) tuples into a list: data=[{excerpt(data)}]."
    else:
        remedy = f'For texts, pass records: data=[{{"text": {excerpt(texts[0])}}}, ...].'
    raise FeatherbackError(f"data={excerpt(data)} is read as the names of files, which do not exist. {remedy}")


def _may_be_a_file(text: str) -> bool:
    """Whether a text is the name of a file, or a misspelt one: it has an ending, or no spaces."""
    ending = Path(text).suffix
    return os.path.exists(text) or (" " not in (ending or text) and "\n" not in text)


def _is_paths(source: object) -> bool:
    """Whether a source of data is a path or a list of paths."""
    if isinstance(source, (list, tuple)):
        return bool(source) and all(isinstance(each, (str, os.PathLike)) for each in source)
    return isinstance(source, (str, os.PathLike))
