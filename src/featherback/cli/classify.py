"""`featherback classify`"""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from featherback.cli.options import COMPUTE, JSON, MEMORY, MODEL
from featherback.cli.parameters import of_training
from featherback.core.options import option
from featherback.core.terminal import quoted, say
from featherback.data.containers.base import NOT_UTF8
from featherback.data.source import STDIN, display_name
from featherback.errors import FeatherbackError


def classify(
    model: str = MODEL,
    text: str | None = option(
        None,
        positional=True,
        metavar="[TEXT]",
        help="The text to classify. If it is missing or -, each line of --file or of standard input is a text.",
    ),
    adapter: Path | None = option(None, metavar="PATH", help="The run, or the PEFT adapter of a classifier."),
    file: Path | None = option(None, metavar="PATH", help="A file with one text per line."),
    chat: bool | None = option(
        None,
        negatable=True,
        help="Wrap each text in the chat template, as prompts and messages of the training data are. The default is "
        "what the run was trained on; for other adapters --no-chat.",
    ),
    memory: int | str | None = MEMORY,
    quantize: str = of_training(),
    compute: str = COMPUTE,
    threads: int | None = of_training(),
    json: bool = JSON,
) -> None:
    """Label texts with MODEL and an adapter that `train --objective classify` made.

    Example: featherback classify model.gguf --adapter topics "The striker scored twice."

    Each line of the output has a label and its probability; with an adapter of `--objective reward`, the reward.
    """
    from featherback.cli.options import check_adapter, open_model, set_threads
    from featherback.data.tokenizers.loader import load_tokenizer
    from featherback.engine.host.maps import MapWatch
    from featherback.runs.classifying import Classifier
    from featherback.runs.compute import resolve_compute
    from featherback.runs.decoders import Within
    from featherback.runs.outcome import wraps

    if adapter is None:
        example = quoted("featherback", "classify", model, "--adapter", "RUN", text or "TEXT")
        raise FeatherbackError(f"--adapter is missing; name the run of a classifier: `{example}`.")
    opened, _ = open_model(model, quantize=quantize)
    check_adapter(opened, adapter)
    set_threads(threads)
    wrapped, compute = wraps(adapter) if chat is None else chat, resolve_compute(compute, model, adapter)
    within = Within(memory, whole=True)
    with MapWatch(opened.maps) as maps:
        tokenizer = load_tokenizer(opened.path)
        with closing(Classifier(opened, tokenizer, adapter, wrapped, compute, within)) as classifier:
            if file is not None and file.is_file():  # a pipe can be read only once
                classifier.make_room(_texts(text, file))
            for found in classifier.classify(_texts(text, file)):
                maps.check()
                if json:
                    say(json_format.dumps({name: each for name, each in vars(found).items() if each is not None}))
                elif found.label is None:
                    say(" ".join(f"{score:+.4f}" for score in found.scores.values()))
                else:
                    say(f"{found.label}  {found.probability:.4f}")


def _texts(text: str | None, file: Path | None) -> Iterator[tuple[str, str]]:
    """Yield the text of the command line, or the lines of a file or of standard input that are not blank.

    Each comes with its place for errors. Raises FeatherbackError if there is none.
    """
    if text not in (None, STDIN):
        yield "TEXT", str(text)
        return
    if file is None and text is None and sys.stdin.isatty():
        raise FeatherbackError("There is no text. Add one after MODEL, name a file with --file, or use a pipe.")
    name, number, found = file or display_name(STDIN), 0, False
    try:
        with sys.stdin.buffer if file is None else file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    found = True
                    yield f"{name}, line {number}", line.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise FeatherbackError(f"{name}, line {number}: {NOT_UTF8}") from None
    except OSError as error:
        raise FeatherbackError(f"Cannot read {name}: {error.strerror}.") from None
    if not found:
        raise FeatherbackError(f"{name} has no text.")
