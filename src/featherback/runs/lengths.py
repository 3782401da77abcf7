"""Chooses the sequence length from the data if the user gave none, once they are tokens (docs/decisions/lengths.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from featherback.core.naming import argument
from featherback.core.sizes import MB
from featherback.core.terminal import print_error
from featherback.data.forms import FORMS
from featherback.data.labelled import LabelledFile, in_order, labels_in
from featherback.data.report import PrepareReport, too_long
from featherback.data.source import STDIN, Source, treatment_of_long
from featherback.data.token_file import TokenFile
from featherback.engine.host.machine import Baseline
from featherback.errors import FeatherbackError, excerpt
from featherback.methods.memory.plan import Plan
from featherback.models.model import Model
from featherback.runs.config import TrainConfig
from featherback.runs.examples import Encode, Examples, make_tokens
from featherback.runs.panels.data import SEQUENCE
from featherback.runs.record import Part
from featherback.runs.run_directory import RunDirectory, misfit

_LONGER = "a model with a longer context keeps them whole"


def settle(run: RunDirectory, model: Model, baseline: Callable[[], Baseline], plan: Plan | None = None) -> None:
    """Set what follows from a run's data: its labels, its sequence length, its plan, and its budget in bytes.

    `plan`: a plan that was made earlier for the run's options. Raises FeatherbackError if examples are longer than the
    model or the memory allows, and --cut is not set; BudgetError if no plan fits.
    """
    # Imported only here, because planning takes memory that training does not need.
    from featherback.runs.choose import longest_fitting, plan_for

    asked = run.config
    config, longest = _with_labels(run), _length_of_data(run)
    most, length, needed = model.config.max_position_embeddings, longest, 0
    if longest > config.sequence:
        length, needed = longest_fitting(config, model, baseline(), config.sequence, min(longest, most))
        if length == config.sequence:  # which need not fit itself: then that is the error
            plan_for(replace(config, seq_len=length), model, baseline)
    if length < longest:
        beyond, change = context_length_of(model), _LONGER
        if length < most:
            named = config.budget and argument("memory", f"{config.budget // MB}MB")
            within = f"in {named or 'the free memory'}"
            beyond = f"the {length} tokens that fit {within}"
            change = f"{argument('memory', f'{needed // MB}MB')} keeps them whole"
        for name, report in run.record.data.items():
            counted = report if isinstance(report, PrepareReport) else None  # None for token lists from Python
            limit_length(_files(run)[name], counted, length, config.cut, beyond, change)
        run.update(data=run.record.data)
        # Examples that lost all supervised tokens were dropped, so the longest may be shorter now.
        length = max(config.sequence, _longest(run))
    if plan is not None and (problem := misfit(plan, config.form, model.blocks)):
        print_error(f"note: the plan in the file cannot be used: {problem}. Making a new plan")
        plan = None
    if plan is None or config.labels != asked.labels or length != config.sequence:
        plan = plan_for(replace(config, seq_len=length), model, baseline)
    config = replace(config, seq_len=length, memory=plan.budget(config.memory))
    run.update(configuration=config, plan=plan)


def _length_of_data(run: RunDirectory) -> int:
    """Return the sequence length that fits a run's data, in tokens: that of the options, if the user gave one."""
    config = run.config
    if config.seq_len is not None:
        return config.seq_len
    longest = _longest(run)
    # With --batch-size, shorter sequences need less memory, and so do those that the model writes. A packed batch has
    # the same size with shorter sequences.
    fits = config.batch_size is not None or config.writes or config.compares
    return longest if longest > config.sequence or fits else config.sequence


def _with_labels(run: RunDirectory) -> TrainConfig:
    """Return the options of a run, with the labels of its data if they are not known yet.

    Raises FeatherbackError if there are fewer than two, or if the data have others than those in the options.
    """
    config = run.config
    if config.criterion.scores != "label":
        return config
    found = labels_in(TokenFile(run.tokens / "train.tokens"))
    if len(found) < 2:
        raise FeatherbackError(f"All examples have the label {excerpt(found[0])}. Training needs at least two labels.")
    config = replace(config, labels=config.labels or in_order(found))
    for path in _files(run).values():
        LabelledFile(path, config.outputs)
    return config


def _longest(run: RunDirectory) -> int:
    """Return the length of the longest sequence of a run's data, in tokens."""
    return max(TokenFile(path).longest for path in _files(run).values())


TOKENS = "data.tokens"
"""The name of the token file that `tokens_in` writes."""


def tokens_in(
    folder: Path, model: Model, data: Source, seq_len: int | None, cut: bool, examples: Examples | None, encode: Encode
) -> PrepareReport | None:
    """Prepare `data`, or `examples` instead, like a run does: write the token file TOKENS to a folder, and check it.

    Returns the report; None for token lists. Errors are those of a run.
    """
    from featherback.data.inputs import spool_stdin  # not in the training process
    from featherback.data.readers import check_use, data_files

    most = model.config.max_position_embeddings
    if seq_len is not None and seq_len > most:
        raise FeatherbackError(f"{argument('seq_len', seq_len)} is longer than {context_length_of(model)}.")
    source = replace(data, long=treatment_of_long(seq_len, cut))
    if STDIN in source.paths:
        spool_stdin(folder)
    if examples is None:
        check_use(source, data_files(source))
    path, size = folder / TOKENS, seq_len or min(SEQUENCE, most)
    report = make_tokens(path, source, size, seq_len or most, examples, model, encode)
    limit_length(path, report, most, cut, context_length_of(model), _LONGER)
    TokenFile(path).check(model.config.vocab_size)
    return report


def limit_length(path: Path, report: PrepareReport | None, length: int, cut: bool, beyond: str, change: str) -> None:
    """Truncate the sequences of a token file to `length` tokens if `cut`, or raise FeatherbackError if one is longer.

    `report`: the report of the file's data, which is updated; None for token lists, which are never truncated.
    For the message, `beyond` names the limit and `change` what would allow the whole examples.
    """
    file = TokenFile(path)
    form = FORMS[file.form]
    if count := form.count_longer(file, length):
        if report is None or not cut:
            data, of = ("the tokens given", len(file)) if report is None else (report.data, report.examples)
            raise FeatherbackError(too_long(count, of, data, beyond, file.longest, change))
        form.cut(file, length, report)


def context_length_of(model: Model) -> str:
    """Return the context length of a model in words, for messages."""
    return f"the context length of {model.path.name}, {model.config.max_position_embeddings} tokens"


def _files(run: RunDirectory) -> dict[Part, Path]:
    return {name: run.tokens / f"{name}.tokens" for name in run.record.data}
