"""Examples from Python: token ids, or records as in data files, such as lists of messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from featherback.core import private
from featherback.core.terminal import Preparing
from featherback.data.batch import IGNORE
from featherback.data.forms import FORMS
from featherback.data.report import PrepareReport
from featherback.data.source import Source
from featherback.data.token_file import TokenFile, TokenFileWriter
from featherback.errors import FeatherbackError, excerpt
from featherback.models.model import Model
from featherback.runs.tables import plain, rows

TITLE = "the data"
"""The name of records in messages."""

TokenList = npt.ArrayLike
Record = Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""An example like a line of a data file ({"prompt": ..., "completion": ...}), or the messages of a conversation
([{"role": ..., "content": ...}, ...])."""

Pair = tuple[str, str]
"""A prompt and its completion, or a question and its answer."""

Examples = Iterable[TokenList | tuple[TokenList, TokenList] | Record | Pair]
"""Token lists, pairs of tokens and labels (-100 = not trained), records, or pairs of texts."""


Encode = Callable[[str, Source, Path, int, Callable[[dict[str, Any]], None], int | None], PrepareReport]
"""The signature of `data.prepare.prepare`, which may run in this process or another."""


def as_records(examples: Examples) -> tuple[bool, Examples]:
    """Return whether the examples are records, judged by the first one, and an iterator over all of them."""
    items = iter(rows(examples))
    first = next(items, None)
    if first is None:
        raise FeatherbackError("The data are empty; pass at least one example.")
    if isinstance(first, Mapping) and "role" in first:
        raise FeatherbackError("The data are the messages of one conversation; pass a list of conversations: [[...]].")
    if _is_text(first) and not _is_pair(first):
        raise FeatherbackError(
            f"Example 0 is {excerpt(first)}; pass texts as (prompt, completion) tuples, as "
            '{"prompt": ..., "completion": ...}, or as {"text": ...}.'
        )
    return _is_record(first), chain([first], items)


def records_beside(path: Path, examples: Examples, source: Source) -> Source:
    """Write records to a file beside the token file `path` and return a source that reads it like `source`.

    The caller deletes the file.
    """
    place = path.with_name(private.temporary_name(path.name, "records"))
    try:
        with private.create_anew(place) as file:
            for line in _lines(examples):
                file.write(f"{line}\n".encode())
    except OSError as error:
        raise FeatherbackError(f"Cannot write {place}: {error.strerror}.") from error
    return replace(source, paths=(str(place),), title=TITLE)


def make_tokens(
    path: Path,
    source: Source,
    sequence: int,
    most: int,
    examples: Examples | None,
    model: Model,
    encode: Encode,
    enough: int | None = None,
) -> PrepareReport | None:
    """Write the token file `path` from a source, or from `examples` instead; return the report, None for token lists.

    `sequence`: length in tokens of the pieces into which plain text is split. `most`: maximum length of a token list.
    `enough`: stop after this many tokens. Raises FeatherbackError for data that cannot be used.
    """
    written = None
    if examples is not None:
        records, examples = as_records(examples)
        if not records:
            form = FORMS[source.form]
            if not form.streams:
                raise FeatherbackError(
                    f"The objective needs {form.called}, and token lists cannot hold them. Pass records: {form.record}."
                )
            write_tokens(path, examples, most, model.config.vocab_size)
            return None
        source = records_beside(path, examples, source)
        written = Path(source.paths[0])
    try:
        with Preparing(source.name) as shown:
            return encode(str(model.path), source, path, sequence, shown.update, enough)
    finally:
        if written is not None:
            written.unlink(missing_ok=True)


def same_tokens(one: TokenFile, other: TokenFile) -> bool:
    """Return whether two token files hold the same examples; their metadata are ignored."""
    pairs = ((one.seq(i), other.seq(i)) for i in range(len(one)))
    return len(one) == len(other) and all(
        np.array_equal(mine, theirs) for each in pairs for mine, theirs in zip(*each, strict=True)
    )


def _lines(examples: Examples) -> Iterator[str]:
    for number, example in enumerate(examples):
        if not _is_record(example):
            raise FeatherbackError(
                f"Example {number} is {excerpt(example)}; it must be a record, a list of messages or a "
                f"(prompt, completion) tuple, like the examples before it."
            )
        record = _as_record(example)
        try:
            yield json.dumps(record, ensure_ascii=True, default=plain)
        except (TypeError, ValueError, RecursionError) as error:
            raise FeatherbackError(f"Example {number} cannot be written as JSON: {error}.") from None


def _is_record(example: object) -> bool:
    if isinstance(example, Mapping) or _is_pair(example):
        return True
    return isinstance(example, (list, tuple)) and bool(example) and isinstance(example[0], Mapping)


def _is_pair(example: object) -> bool:
    """Return whether it is a tuple of two texts: a prompt and its completion."""
    return isinstance(example, tuple) and len(example) == 2 and all(isinstance(part, str) for part in example)


def _is_text(example: object) -> bool:
    """Return whether it is a text, or a sequence that begins with one."""
    if isinstance(example, (list, tuple)):
        return bool(example) and isinstance(example[0], str)
    return isinstance(example, str)


def _as_record(example: Any) -> Mapping[str, Any]:
    """Return an example in the form of a line of a data file."""
    if isinstance(example, Mapping):
        return example
    return dict(zip(("prompt", "completion"), example)) if _is_pair(example) else {"messages": example}


def _tokens_and_labels(example: Any, number: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return tokens and labels of an example: a tuple of two lists has both, anything else has tokens only."""
    pair = isinstance(example, tuple) and len(example) == 2 and not all(np.ndim(part) == 0 for part in example)
    tokens, labels = example if pair else (example, example)
    try:
        return np.asarray(tokens), np.asarray(labels)
    except ValueError:  # it contains lists of different lengths
        raise FeatherbackError(f"Example {number} is not a list of token ids.") from None


def write_tokens(path: Path, examples: Examples, seq_len: int, vocab_size: int) -> None:
    """Write token lists to a token file. Raises FeatherbackError for lists that the model cannot be trained on.

    `seq_len`: maximum length of a list. `vocab_size`: size of the model's vocabulary.
    """
    with TokenFileWriter(path) as writer:
        for number, example in enumerate(examples):
            ids, wanted = _tokens_and_labels(example, number)
            if ids.ndim != 1 or ids.size == 0 or ids.shape != wanted.shape or ids.dtype.kind not in "iu":
                raise FeatherbackError(
                    f"Example {number} is not a list of token ids, or its labels have another length."
                )
            if ids.min() < 0 or ids.max() >= vocab_size:
                raise FeatherbackError(f"Example {number} has a token id outside 0..{vocab_size - 1}.")
            if ids.size > seq_len:
                raise FeatherbackError(
                    f"Example {number} has {ids.size} tokens, more than the sequence length {seq_len}."
                )
            trained = wanted != IGNORE
            if not np.array_equal(wanted[trained], ids[trained]):
                raise FeatherbackError(
                    f"Example {number} has a wrong label: a label must equal its token, or be {IGNORE} (not trained)."
                )
            writer.add(ids, trained)
        if not writer.n_targets:
            raise FeatherbackError(
                "The data have no supervised token: every label is -100, or every example has only one token."
            )
