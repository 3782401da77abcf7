"""`featherback inspect`"""

from __future__ import annotations

import json as json_format
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from featherback.cli.options import JSON
from featherback.cli.parameters import of_training
from featherback.core.options import option
from featherback.core.sizes import shown_mb
from featherback.core.terminal import clean, say

if TYPE_CHECKING:
    from featherback.cli.kinds.base import Outlook
    from featherback.data.source import Source

WITHOUT_BUDGET = "reads headers; `--examples` and `--data` tokenise in a process of their own"
"""Why the command has no memory budget, as docs/memory.md says it."""

_WIDTH, _LONGEST_NAME = 100, 40  # columns
_MOST_LINES, _MOST_OF_ONE = 28, 5  # of all facts, and of one fact


def inspect(
    what: list[str] = option(
        positional=True,
        several=True,
        metavar="PATH|MODEL",
        help="A model, adapter, run, report, run.yaml, Ollama folder, token file or tokenizer, or one or more data "
        "files.",
    ),
    model: str | None = option(
        None, metavar="MODEL", help="Show examples of a data file as this model sees them in training."
    ),
    examples: int = option(3, help="With --model: number of examples to show.", least=1),
    seq_len: int | None = of_training(
        "With --model: maximum sequence length. Longer texts are split, and longer chats truncated with --cut."
    ),
    cut: bool = of_training(),
    objective: str = of_training("Read the data as training with this objective would."),
    columns: tuple[str, ...] | None = of_training(),
    table: tuple[str, ...] | None = of_training(),
    me: tuple[str, ...] | None = of_training(),
    skip_bad: bool = of_training(),
    quantize: str = of_training(),
    json: bool = JSON,
) -> None:
    """Describe a model, data, adapter or run, and what to do next.

    For a model, it shows whether the model can be trained, and the least memory that training takes.
    """
    from featherback.data.source import Source, columns_of, table_options, treatment_of_long
    from featherback.nn.objectives import OBJECTIVES

    long, options = treatment_of_long(seq_len, cut), table_options(table or ())
    form = OBJECTIVES[objective].data_form
    source = Source(tuple(what), columns_of(columns or ()), skip_bad, long, form=form, table=options, me=me or ())
    if model is not None:
        _reject_quantize(quantize, "With --model, examples of the data are shown")
        _show_examples(model, source, seq_len, cut, examples, json)
        return
    from featherback.cli.kinds import kind_of
    from featherback.cli.kinds.data import KIND as DATA
    from featherback.cli.kinds.model import KIND as MODEL
    from featherback.cli.kinds.model import AModel
    from featherback.data.source import STDIN

    path = Path(what[0]) if len(what) > 1 or STDIN in what else _path_of(what[0])
    kind = DATA if len(what) > 1 or STDIN in what else kind_of(path)
    if kind is MODEL:
        kind = AModel(quantize)
    else:
        _reject_quantize(quantize, f"{source.name} is {kind.title}")
    if kind is DATA:
        facts, outlook = DATA.describe_source(source, objective)
    else:
        facts, outlook = kind.describe(path), kind.outlook(path, what[0])
    if json:
        say(json_format.dumps({**facts, **_for_programs(outlook)}))
        return
    for line in _lines(facts, outlook):
        say(line)


def _reject_quantize(quantize: str, what: str) -> None:
    from featherback.errors import FeatherbackError

    if quantize != "none":
        raise FeatherbackError(f"{what}. Remove --quantize, which is only for Hugging Face folders.")


def _for_programs(outlook: Outlook) -> dict[str, Any]:
    return {
        "trainable": outlook.trainable,
        "reason": outlook.reason,
        "least_memory_bytes": outlook.memory,
        "notes": outlook.notes,
        "next": outlook.next,
    }


def _show_examples(model: str, data: Source, seq_len: int | None, cut: bool, count: int, json: bool) -> None:
    from featherback.cli.preamble import describe_data, print_report, print_sample, row
    from featherback.data.launch import prepare_in_subprocess
    from featherback.data.preview import preview
    from featherback.models import load
    from featherback.models.hub.locate import locate
    from featherback.runs.lengths import tokens_in
    from featherback.runs.panels.data import SEQUENCE

    opened = load(locate(model))
    with tempfile.TemporaryDirectory(prefix="featherback-") as folder:
        report = tokens_in(Path(folder), opened, data, seq_len, cut, None, prepare_in_subprocess)
        assert report is not None  # the data are files
        kept = replace(data, long="cut") if report.truncated else data
        samples = preview(opened.path, kept, report.seq_len if report.truncated else seq_len or SEQUENCE, count)
    if json:
        facts = {"data": data.name, "model": model, "report": asdict(report)}
        say(json_format.dumps({**facts, "examples": [asdict(sample) for sample in samples]}))
        return
    row("data", describe_data(report))
    print_report(report)
    for sample in samples:
        print_sample(sample)
        short = f", {sample.truncated} truncated" if sample.truncated else ""
        say(f"  {sample.n_tokens} tokens, {sample.n_supervised} trained{short}\n")


def describe(what: str) -> dict[str, Any]:
    """The facts about a path, or about a model given by its name."""
    from featherback.cli.kinds import kind_of

    path = _path_of(what)
    return kind_of(path).describe(path)


def _path_of(what: str) -> Path:
    """The path of a model, file or folder; raises FeatherbackError if it does not exist."""
    from featherback.data.containers import has_data_suffix
    from featherback.errors import FeatherbackError
    from featherback.models.hub.locate import locate

    if has_data_suffix(what) and not Path(what).exists():
        raise FeatherbackError(f"The data file {what} does not exist.")
    return locate(what)


def _lines(facts: dict[str, Any], outlook: Outlook) -> Iterator[str]:
    """The lines to print: at most one screen, whatever the file contains."""
    verdict: dict[str, Any] = {}
    if outlook.trainable is not None:
        verdict["trainable"] = outlook.trainable if outlook.reason is None else f"no: {outlook.reason}"
    if outlook.memory is not None:
        verdict["least_memory"] = (
            f"{shown_mb(outlook.memory)} to train with the default options; preparing the data may need more memory"
        )
    width = min(_LONGEST_NAME, max(map(len, [*facts, *verdict])))
    lines = [line for name, value in facts.items() for line in _wrapped(name, width, value)]
    yield from lines[:_MOST_LINES]
    if len(lines) > _MOST_LINES:
        yield "... --json shows all facts"
    for name, value in verdict.items():
        yield from _wrapped(name, width, value)
    for note in outlook.notes:
        yield f"note: {note}"
    for number, command in enumerate(outlook.next):
        yield f"{'or' if number else 'next':<4}  {command}"


def _wrapped(name: str, width: int, value: Any) -> list[str]:
    """One fact, wrapped to a few lines."""
    first, text = f"{clean(name, one_line=True)[:width]:<{width}}  ", clean(_text(value), one_line=True)
    lines = wrap(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        max_lines=_MOST_OF_ONE,
        placeholder=" ...",
        break_on_hyphens=False,
    )
    return lines or [first.rstrip()]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_text(item)}" for key, item in value.items())
    return str(value)
