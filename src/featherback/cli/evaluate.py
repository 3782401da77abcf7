"""`featherback evaluate`"""

from __future__ import annotations

import json as json_format
import time
from typing import Annotated

import typer

from featherback.cli.options import (
    AdapterOption,
    ComputeOption,
    CutOption,
    JSONOption,
    MapOption,
    ModelArgument,
    QuantizeOption,
    SequenceOption,
    SkipOption,
    ThreadsOption,
)
from featherback.core.terminal import say


def evaluate(
    model: ModelArgument,
    data: Annotated[
        list[str],
        typer.Option(metavar="PATH", help="Data in any format that `train` reads. Repeat the option for more files."),
    ],
    adapter: AdapterOption = None,
    *,
    seq_len: SequenceOption,
    quantize: QuantizeOption,
    cut: CutOption,
    columns: MapOption,
    skip_bad: SkipOption,
    compute: ComputeOption,
    threads: ThreadsOption,
    json: JSONOption = False,
) -> None:
    """Measure the loss and perplexity of MODEL on your data.

    With --adapter, the adapter is applied. Only supervised tokens count: the assistant's answers, or the whole of a
    plain text. With a classifier as the adapter, the data have labels, and accuracy and macro-F1 are measured.
    """
    from featherback.cli.options import open_model, set_threads
    from featherback.cli.swapped import check_not_swapped
    from featherback.data.source import Source, columns_of
    from featherback.runs.computed import resolve_compute
    from featherback.runs.evaluation import evaluate_file

    check_not_swapped("evaluate", str(model), data)
    source = Source(tuple(data), columns_of(columns or ()), skip_bad)
    opened, lora = open_model(model, adapter, quantize)
    set_threads(threads)
    compute = resolve_compute(compute, model, adapter)
    start = time.perf_counter()
    result = evaluate_file(opened, source, lora, seq_len, compute, cut)
    seconds, report = time.perf_counter() - start, result.report
    assert report is not None  # the data are files
    if json:
        values = {
            "loss": result.loss,
            **({} if result.measures else {"perplexity": result.perplexity}),
            **result.measures,
            ("texts" if result.measures else "tokens"): result.tokens,
            "compute": compute,
            "seconds": seconds,
            "examples": report.examples,
            "truncated": report.truncated,
            "truncated_tokens": report.truncated_tokens,
            "dropped": report.dropped,
            "skipped": report.skipped,
        }
        say(json_format.dumps(values))
    else:
        from featherback.view.reporter import shown_measures

        measured = ", ".join(shown_measures(result.measures))
        say(
            f"loss {result.loss:.4f}, {measured}, over {result.tokens} texts, computed in {compute}"
            if measured
            else f"loss {result.loss:.4f} nats per token, perplexity {result.perplexity:.3f}, "
            f"over {result.tokens} tokens, computed in {compute}"
        )
        for note in report.notes():
            say(f"note: {note}")
