"""`featherback inspect`"""

from __future__ import annotations

import json as json_format
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

from featherback.cli.options import CutOption, FromConfig, JSONOption, MapOption, QuantizeOption, SkipOption
from featherback.core.sizes import shown_mb
from featherback.core.terminal import clean, say

if TYPE_CHECKING:
    from featherback.cli.kinds.base import Outlook
    from featherback.data.source import Source

_WIDTH, _LONGEST_NAME = 100, 40  # columns
_MOST_LINES, _MOST_OF_ONE = 28, 5  # of facts, and of one


def inspect(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH|MODEL",
            help="A model, an adapter, a run, its report or run.yaml, a folder for Ollama, data (one file or several), "
            "a token file or a tokenizer.",
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Show examples of a data file as this model would be trained on them."),
    ] = None,
    examples: Annotated[int, typer.Option(min=1, help="With --model: how many.")] = 3,
    *,
    seq_len: Annotated[int | None, FromConfig("With --model: where text, and a chat with --cut, is cut.")],
    cut: CutOption,
    columns: MapOption,
    skip_bad: SkipOption,
    quantize: QuantizeOption,
    json: JSONOption = False,
) -> None:
    """Say what something is, whether it can be trained and in what memory, and what to type next."""
    from featherback.data.source import Source, columns_of, what_is_long

    source = Source(tuple(what), columns_of(columns or ()), skip_bad, what_is_long(seq_len, cut))
    if model is not None:
        _refuse_quantize(quantize, "With --model, data are shown")
        _show_examples(model, source, seq_len, cut, examples, json)
        return
    from featherback.cli.kinds import kind_of
    from featherback.cli.kinds.data import KIND as DATA
    from featherback.cli.kinds.model import KIND as MODEL
    from featherback.cli.kinds.model import AModel
    from featherback.data.source import STDIN

    path = Path(what[0]) if len(what) > 1 or STDIN in what else _place(what[0])
    kind = DATA if len(what) > 1 or STDIN in what else kind_of(path)
    if kind is MODEL:
        kind = AModel(quantize)
    else:
        _refuse_quantize(quantize, f"{source.name} is {kind.title}")
    if kind is DATA:
        facts, outlook = DATA.told(source)
    else:
        facts, outlook = kind.describe(path), kind.outlook(path, what[0])
    if json:
        say(json_format.dumps({**facts, **_for_programs(outlook)}))
        return
    for line in _lines(facts, outlook):
        say(line)


def _refuse_quantize(quantize: str, what: str) -> None:
    from featherback.errors import FeatherbackError

    if quantize != "none":
        raise FeatherbackError(f"{what}; --quantize is for Hugging Face folders: leave it out.")


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
    from featherback.data.preview import preview
    from featherback.models import load
    from featherback.models.hub.locate import locate
    from featherback.runs.lengths import as_tokens
    from featherback.runs.panels.data import SEQUENCE

    opened = load(locate(model))
    with as_tokens(opened, data, seq_len, cut) as (_, report):
        assert report is not None  # the data are files
        kept = replace(data, long="cut") if report.truncated else data
        samples = preview(opened.path, kept, report.seq_len if report.truncated else seq_len or SEQUENCE, count)
    if json:
        facts = {"data": data.name, "model": model, "report": report.to_json()}
        say(json_format.dumps({**facts, "examples": [asdict(sample) for sample in samples]}))
        return
    row("data", describe_data(report))
    print_report(report)
    for sample in samples:
        print_sample(sample)
        short = f", {sample.truncated} cut off" if sample.truncated else ""
        say(f"  {sample.n_tokens} tokens, {sample.n_supervised} trained{short}\n")


def describe(what: str) -> dict[str, Any]:
    """The facts about a path, or about a model by its name."""
    from featherback.cli.kinds import kind_of

    path = _place(what)
    return kind_of(path).describe(path)


def _place(what: str) -> Path:
    """Where a thing lies; FeatherbackError if there is no such thing."""
    from featherback.data.containers import is_name_of_data
    from featherback.errors import FeatherbackError
    from featherback.models.hub.locate import locate

    if is_name_of_data(what) and not Path(what).exists():
        raise FeatherbackError(f"The data file {what} does not exist.")
    return locate(what)


def _lines(facts: dict[str, Any], outlook: Outlook) -> Iterator[str]:
    """What is printed for people: no more than a screen has, whatever a file holds."""
    verdict: dict[str, Any] = {}
    if outlook.trainable is not None:
        verdict["trainable"] = outlook.trainable if outlook.reason is None else f"no: {outlook.reason}"
    if outlook.memory is not None:
        verdict["least_memory"] = (
            f"{shown_mb(outlook.memory)} to train with the usual options; preparing the data may take more"
        )
    width = min(_LONGEST_NAME, max(map(len, [*facts, *verdict])))
    lines = [line for name, value in facts.items() for line in _wrapped(name, width, value)]
    yield from lines[:_MOST_LINES]
    if len(lines) > _MOST_LINES:
        yield "... and more, which --json shows"
    for name, value in verdict.items():
        yield from _wrapped(name, width, value)
    for note in outlook.notes:
        yield f"note: {note}"
    for number, command in enumerate(outlook.next):
        yield f"{'or' if number else 'next':<4}  {command}"


def _wrapped(name: str, width: int, value: Any) -> list[str]:
    """A fact on a few lines."""
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
