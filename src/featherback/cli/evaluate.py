"""`featherback evaluate`"""

from __future__ import annotations

import time
from pathlib import Path

from featherback.cli.options import ADAPTER, COMPUTE, JSON, MEMORY, MODEL, OBJECTIVE
from featherback.cli.parameters import of_training
from featherback.core.options import option
from featherback.runs.requests import EvaluationRequest


def evaluate(
    model: str = MODEL,
    data: list[str] = option(
        metavar="PATH", several=True, help="Data in any format that `train` reads. Repeat the option for more files."
    ),
    adapter: Path | None = ADAPTER,
    reward: tuple[str, ...] | None = of_training(
        "Let the model answer prompts, and judge the answers: exact, numeric, token_f1, rouge_l, regex:PATTERN, "
        "json_schema:FILE, command:COMMAND, python_tests or reasoning_gym:TASK. A number before it is its weight: "
        "0.2*regex:PATTERN. Repeat the option to add up several."
    ),
    answer_tokens: int = of_training(),
    reward_seconds: float = of_training(),
    reward_memory: int = of_training(),
    objective: str = OBJECTIVE,
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
    device: str = of_training(),
    vram: int | None = of_training(),
    json: bool = JSON,
) -> EvaluationRequest:
    """Measure the loss and perplexity of MODEL on your data.

    With --adapter, the adapter is applied. Only supervised tokens count: the assistant's answers, or the whole of a
    plain text. With a classifier as the adapter, the data have labels, and accuracy and macro-F1 are measured. With
    --objective dpo, the data are pairs of answers, and MODEL without the adapter is the reference. With --reward, the
    data are prompts: the model writes the likeliest answer to each, and the mean reward is measured.
    """
    from featherback.cli.swapped import check_not_swapped
    from featherback.core.decode import encode
    from featherback.data.source import Source, columns_of, table_options
    from featherback.models.hub.locate import locate
    from featherback.runs.compute import resolve_compute
    from featherback.runs.judging import rewards_of
    from featherback.runs.panels.run import check_device

    check_not_swapped("evaluate", str(model), data)
    check_device(device, vram, memory)
    return EvaluationRequest(
        model=str(locate(model)),
        data=encode(
            Source(tuple(data), columns_of(columns or ()), skip_bad, table=table_options(table or ()), me=me or ())
        ),
        adapter=None if adapter is None else str(adapter),
        quantize=quantize,
        seq_len=seq_len,
        cut=cut,
        compute=resolve_compute(compute, model, adapter),
        threads=threads,
        memory=memory,
        objective=objective,
        device=device,
        vram=vram,
        rewards=rewards_of(reward, objective, answer_tokens, reward_seconds, reward_memory),
        json=json,
        began=time.time(),
    )
