"""`featherback classify`"""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from featherback.cli.options import ComputeOption, JSONOption, ModelArgument, QuantizeOption, ThreadsOption
from featherback.core.terminal import quoted, say
from featherback.data.source import STDIN
from featherback.errors import FeatherbackError


def classify(
    model: ModelArgument,
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="[TEXT]",
            help="The text to classify. If it is missing or -, each line of --file or of standard input is a text.",
            show_default=False,
        ),
    ] = None,
    adapter: Annotated[
        Path | None, typer.Option("--adapter", metavar="PATH", help="The run, or the PEFT adapter of a classifier.")
    ] = None,
    file: Annotated[Path | None, typer.Option(metavar="PATH", help="A file with one text per line.")] = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--no-chat",
            help="Wrap each text in the chat template, as prompts and messages of the training data are. The default "
            "is what the run was trained on; for other adapters --no-chat.",
            show_default=False,
        ),
    ] = None,
    *,
    quantize: QuantizeOption,
    compute: ComputeOption,
    threads: ThreadsOption,
    json: JSONOption = False,
) -> None:
    """Label texts with MODEL and an adapter that `train --objective classify` made.

    Example: featherback classify model.gguf --adapter topics "The striker scored twice."

    Each line of the output has a label and its probability; with an adapter of `--objective reward`, the reward.
    """
    from featherback.cli.options import open_model, set_threads
    from featherback.data.tokenizers.loader import load_tokenizer
    from featherback.engine.host.maps import MapWatch
    from featherback.infer.classify import classified
    from featherback.runs.computed import resolve_compute
    from featherback.runs.outcome import wraps

    if adapter is None:
        example = quoted("featherback", "classify", model, "--adapter", "RUN", text or "TEXT")
        raise FeatherbackError(f"--adapter is missing; name the run of a classifier: `{example}`.")
    opened, lora = open_model(model, adapter, quantize)
    assert lora is not None
    set_threads(threads)
    wrapped = wraps(adapter) if chat is None else chat
    with MapWatch(opened.files) as maps:
        tokenizer, texts = load_tokenizer(opened.path), _texts(text, file)
        for found in classified(opened, tokenizer, lora, texts, wrapped, resolve_compute(compute, model, adapter)):
            maps.check()
            if json:
                say(json_format.dumps({name: each for name, each in vars(found).items() if each is not None}))
            elif found.label is None:
                say(" ".join(f"{score:+.4f}" for score in found.scores.values()))
            else:
                say(f"{found.label}  {found.probability:.4f}")


def _texts(text: str | None, file: Path | None) -> Iterator[str]:
    """Yield the text of the command line, or the lines of a file or of standard input that are not blank.

    Raises FeatherbackError if there is none.
    """
    if text not in (None, STDIN):
        yield str(text)
        return
    if file is None and text is None and sys.stdin.isatty():
        raise FeatherbackError("There is no text. Add one after MODEL, name a file with --file, or use a pipe.")
    found = False
    try:
        lines = sys.stdin if file is None else file.open(encoding="utf-8")
        with lines:
            for line in lines:
                if line.strip():
                    found = True
                    yield line.rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise FeatherbackError(f"Cannot read {file or 'standard input'}: {reason}.") from None
    if not found:
        raise FeatherbackError(f"{file or 'Standard input'} has no text.")
