"""The sequence length that data need, where none was named: known once they are tokens (docs/decisions/lengths.md)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from featherback.core.naming import argument
from featherback.core.sizes import MB
from featherback.data.report import PrepareReport, too_long
from featherback.data.source import STDIN, Source, what_is_long
from featherback.data.token_file import TokenFile, aside, choosing
from featherback.engine.host.machine import Baseline
from featherback.errors import FeatherbackError
from featherback.models.model import Model
from featherback.runs.given import Examples, make_tokens
from featherback.runs.panels.data import SEQUENCE
from featherback.runs.run_directory import RunDirectory, plan_from_json

_LONGER = "a model for longer texts takes them whole"


def outgrown(run: RunDirectory) -> bool:
    """Whether the plan of a run without a sequence length does not do for the one that its data need."""
    config = run.config
    if config.seq_len is not None:
        return False
    longest = _longest(run)
    # A packed batch of shorter sequences holds more of them; one of so many examples needs less memory.
    return longest > config.sequence or (longest < config.sequence and config.batch_size is not None)


def settle_length(run: RunDirectory, open_model: Callable[[], Model], baseline: Callable[[], Baseline]) -> None:
    """Give a run without a sequence length the one that its data need, and the plan for it; and a budget that was named
    by a word the amount.

    FeatherbackError if examples are longer than the model or the memory allows, and are not to be cut.
    """
    config = run.config
    if not outgrown(run):
        plan = plan_from_json(run.record.get("plan"))
        memory = config.memory if plan is None else plan.budget(config.memory)
        settled = replace(config, seq_len=config.sequence, memory=memory)
        if settled != config:
            run.update(configuration=settled.to_json())
        return
    # What only plans is not there at other times.
    from featherback.runs.choose import longest_fitting, plan_for

    longest, model = _longest(run), open_model()
    most, here = model.config.max_position_embeddings, baseline()
    length, needed = longest, 0
    if longest > config.sequence:
        length, needed = longest_fitting(config, model, here, config.sequence, min(longest, most))
    if length < longest:
        beyond, change = made_for(model), _LONGER
        if length < most:
            named = config.budget and argument("memory", f"{config.budget // MB}MB")
            within = f"in {named or 'the free memory'}"
            beyond = f"the {length} tokens that fit {within}"
            change = f"{argument('memory', f'{needed // MB}MB')} takes them whole"
        reports: dict[str, Any] = dict(run.record["data"])
        for name, path in _files(run).items():
            given = "paths" not in reports[name]  # as tokens, from Python
            report = None if given else PrepareReport.from_json(reports[name])
            hold_to(path, report, length, config.cut, beyond, change)
            if report is not None:
                reports[name] = report.to_json()
        run.update(data=reports)
        # What was cut may have had nothing left to train: the longest of the others decides.
        length = max(config.sequence, _longest(run))
    config = replace(config, seq_len=length)
    plan = plan_for(config, model, lambda: here)
    config = replace(config, memory=plan.budget(config.memory))
    run.update(configuration=config.to_json(), plan=asdict(plan))


def _longest(run: RunDirectory) -> int:
    """Tokens of the longest sequence of a run's data."""
    return max(TokenFile(path).max_length for path in _files(run).values())


@contextmanager
def as_tokens(
    model: Model, data: Source, seq_len: int | None, cut: bool, examples: Examples | None = None
) -> Iterator[tuple[TokenFile, PrepareReport | None]]:
    """Inside: `data`, or the `examples` in their place, as a run would have them, made in a process of its own.

    The report is None for token lists. FeatherbackError as from a run.
    """
    from featherback.data.inputs import keep_stdin
    from featherback.data.launch import prepare_in_subprocess  # not in the training process

    most = model.config.max_position_embeddings
    if seq_len is not None and seq_len > most:
        raise FeatherbackError(f"{argument('seq_len', seq_len)} is beyond {made_for(model)}.")
    source = replace(data, long=what_is_long(seq_len, cut))
    with tempfile.TemporaryDirectory(prefix="featherback-") as folder:
        if STDIN in source.paths:
            keep_stdin(Path(folder))
        path = Path(folder) / "data.tokens"
        size = seq_len or min(SEQUENCE, most)
        report = make_tokens(path, source, size, seq_len or most, examples, model, prepare_in_subprocess)
        hold_to(path, report, most, cut, made_for(model), _LONGER)
        tokens = TokenFile(path)
        tokens.check(model.config.vocab_size)
        yield tokens, report


def hold_to(path: Path, report: PrepareReport | None, length: int, cut: bool, beyond: str, change: str) -> None:
    """See that no sequence of a token file is longer than `length`: cut it, or refuse the data with a FeatherbackError.

    `report` is that of the file's data, and is kept true; None: they were given as tokens, which are never cut.
    `beyond` says what `length` is, `change` what would take the examples whole.
    """
    file = TokenFile(path)
    if count := _count_longer(file, length):
        if report is None or not cut:
            data, of = ("the tokens given", len(file)) if report is None else (report.data, report.examples)
            raise FeatherbackError(too_long(count, of, data, beyond, file.max_length, change))
        _cut(file, length, report)


def _count_longer(file: TokenFile, length: int) -> int:
    """Sequences of more than `length` tokens."""
    return sum(int(np.count_nonzero(lengths > length)) for _, lengths in file.all_lengths())


def _cut(file: TokenFile, length: int, report: PrepareReport) -> None:
    """Let a token file have sequences of at most `length` tokens, counted; those that train nothing then are left
    out. No token is written again."""
    report.seq_len = length
    with choosing(aside(file), file.path) as cut:
        cut.metadata.update(file.metadata)
        cut.n_targets = file.n_targets
        for first, lengths in file.all_lengths():
            kept = np.ones(lengths.size, bool)
            for i in np.flatnonzero(lengths > length).tolist():
                supervised = file.seq(first + i)[1]
                kept[i] = supervised[1:length].any()
                report.cut(supervised.size - length)
                lost = supervised[length if kept[i] else 1 :]
                cut.n_targets -= int(np.count_nonzero(lost))
                file.drop_pages()
            starts, ends = (part[first : first + lengths.size][kept] for part in (file.starts, file.ends))
            cut.add(starts, np.minimum(ends, starts + length))
            report.dropped += int(np.count_nonzero(~kept))
        if not cut.n_targets:
            raise FeatherbackError(report.nothing_within)
        report.sequences, report.tokens, report.supervised_tokens = cut.n_sequences, cut.n_tokens, cut.n_targets
        cut.metadata.update(seq_len=length, report=report.to_json())


def made_for(model: Model) -> str:
    """The longest sequence of a model, in words."""
    return f"the {model.config.max_position_embeddings} tokens that {model.path.name} was made for"


def _files(run: RunDirectory) -> dict[str, Path]:
    return {name: run.tokens / f"{name}.tokens" for name in run.record["data"]}
