"""`featherback evaluate`"""

from __future__ import annotations

import time
from typing import Annotated

import typer

from featherback.cli.options import (
    AdapterOption,
    ComputeOption,
    CutOption,
    JSONOption,
    MapOption,
    MemoryOption,
    MeOption,
    ModelArgument,
    ObjectiveOption,
    QuantizeOption,
    SequenceOption,
    SkipOption,
    TableOption,
    ThreadsOption,
)
from featherback.runs.requests import EvaluationRequest


def evaluate(
    model: ModelArgument,
    data: Annotated[
        list[str],
        typer.Option(metavar="PATH", help="Data in any format that `train` reads. Repeat the option for more files."),
    ],
    adapter: AdapterOption = None,
    *,
    objective: ObjectiveOption,
    memory: MemoryOption,
    seq_len: SequenceOption,
    quantize: QuantizeOption,
    cut: CutOption,
    columns: MapOption,
    table: TableOption,
    me: MeOption,
    skip_bad: SkipOption,
    compute: ComputeOption,
    threads: ThreadsOption,
    json: JSONOption = False,
) -> EvaluationRequest:
    """Measure the loss and perplexity of MODEL on your data.

    With --adapter, the adapter is applied. Only supervised tokens count: the assistant's answers, or the whole of a
    plain text. With a classifier as the adapter, the data have labels, and accuracy and macro-F1 are measured. With
    --objective dpo, the data are pairs of answers, and MODEL without the adapter is the reference.
    """
    from featherback.cli.swapped import check_not_swapped
    from featherback.core.naming import aliases_in_use
    from featherback.data.source import Source, columns_of, table_options
    from featherback.models.hub.locate import locate
    from featherback.runs.computed import resolve_compute

    check_not_swapped("evaluate", str(model), data)
    return EvaluationRequest(
        model=str(locate(model)),
        data=Source(
            tuple(data), columns_of(columns or ()), skip_bad, table=table_options(table or ()), me=me or ()
        ).to_json(),
        adapter=None if adapter is None else str(adapter),
        quantize=quantize,
        seq_len=seq_len,
        cut=cut,
        compute=resolve_compute(compute, model, adapter),
        threads=threads,
        memory=memory,
        objective=objective,
        json=json,
        aliases=aliases_in_use(),
        began=time.time(),
    )
