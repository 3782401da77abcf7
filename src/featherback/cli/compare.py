"""`featherback compare`"""

from __future__ import annotations

import time
from pathlib import Path

from featherback.cli.options import COMPUTE, JSON, MEMORY, MODEL
from featherback.cli.parameters import of_training
from featherback.core.options import option
from featherback.runs.requests import ComparisonRequest, EvaluationRequest


def compare(
    model: str = MODEL,
    data: list[str] = option(
        metavar="PATH", several=True, help="Held-out data in any format that `train` reads: prompts with right answers."
    ),
    adapter: list[Path] = option(
        (), metavar="PATH", several=True, help="A run or an adapter to compare with MODEL. May be repeated."
    ),
    against: list[str] = option(
        (), metavar="MODEL", several=True, help="Another model to compare with MODEL. May be repeated."
    ),
    reward: tuple[str, ...] | None = of_training(
        "A metric: exact, token_f1, rouge_l, numeric, or any other that `evaluate --reward` has. Repeat the option for "
        "several.",
        shown_default="those that suit the right answers",
    ),
    at_least: list[str] = option(
        (),
        metavar="METRIC=VALUE",
        several=True,
        help="End with exit status 3 if an adapter, or a model of --against, does not reach this value: token_f1=0.6.",
    ),
    general: bool = option(
        True,
        negatable=True,
        help="Also measure what was forgotten: the loss of a fixed text, and how much the answers to fixed "
        "instructions still resemble those of MODEL.",
    ),
    show: int = option(3, metavar="N", help="Number of prompts whose answers are shown side by side.", least=0),
    answer_tokens: int = of_training(),
    reward_seconds: float = of_training(),
    reward_memory: int = of_training(),
    memory: int | str | None = MEMORY,
    seq_len: int | None = of_training(),
    quantize: str = of_training(),
    cut: bool = of_training(),
    columns: tuple[str, ...] | None = of_training(),
    table: tuple[str, ...] | None = of_training(),
    me: tuple[str, ...] | None = of_training(),
    skip_bad: bool = of_training(),
    compute: str = COMPUTE,
    threads: int | None = of_training(),
    json: bool = JSON,
) -> ComparisonRequest:
    """Compare the answers of MODEL with those of adapters, or of other models, on held-out data.

    Example: featherback compare model.gguf --adapter notes --data held-out.jsonl --at-least token_f1=0.6

    Each writes the likeliest answer to every prompt. Metrics, the held-out loss and the differences from MODEL are
    printed, with intervals of 95 %.
    """
    from featherback.cli.swapped import check_not_swapped
    from featherback.core.decode import encode
    from featherback.data.source import Source, columns_of, table_options
    from featherback.models.hub.locate import locate
    from featherback.runs.comparing import check_metrics, general_requests, least_of, names_of
    from featherback.runs.compute import resolve_compute
    from featherback.runs.judging import judging_fields
    from featherback.runs.panels.optimisation import NEXT_TOKEN

    check_not_swapped("compare", str(model), data)
    asked = least_of(at_least)
    check_metrics(asked, reward or ())
    places = [(model, None), *((model, each) for each in adapter), *((each, None) for each in against)]
    source = Source(tuple(data), columns_of(columns or ()), skip_bad, table=table_options(table or ()), me=me or ())
    computed = resolve_compute(compute, model, *adapter)
    judging = judging_fields(reward or (), answer_tokens, reward_seconds, reward_memory)
    answers = tuple(
        EvaluationRequest(
            model=str(locate(place)),
            data=encode(source),
            adapter=None if own is None else str(own),
            quantize=quantize,
            seq_len=seq_len,
            cut=cut,
            compute=computed,
            threads=threads,
            memory=memory,
            objective=NEXT_TOKEN,
            device="cpu",
            vram=None,
            rewards=judging,
            json=json,
            began=time.time(),
        )
        for place, own in places
    )
    losses = tuple(each._replace(rewards=None) for each in answers)
    kept = tuple(general_requests(each, judging) for each in answers if general and len(places) > 1)
    return ComparisonRequest(names_of(places), answers, losses, kept, asked, show, json)
