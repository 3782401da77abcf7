"""Examples given from Python: token ids, or records of the shapes that data files hold, such as message lists."""

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
from featherback.data.report import PrepareReport
from featherback.data.source import Source
from featherback.data.token_file import TokenFile, TokenFileWriter
from featherback.errors import FeatherbackError, shown
from featherback.models.model import Model

TITLE = "the data"
"""What messages call records."""

TokenList = npt.ArrayLike
Record = Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""An example as a line of a data file would have it ({"prompt": ..., "completion": ...}), or a conversation's messages
({"role": ..., "content": ...})."""

Pair = tuple[str, str]
"""A prompt and its completion, or a question and its answer."""

Examples = Iterable[TokenList | tuple[TokenList, TokenList] | Record | Pair]
"""Token lists, pairs of tokens and labels (-100 = not trained), records, or pairs of texts."""


Prepare = Callable[[str, Source, Path, int, Callable[[dict[str, Any]], None], int | None], PrepareReport]
"""`data.prepare.prepare`, here or elsewhere."""


def as_records(examples: Examples) -> tuple[bool, Examples]:
    """Whether these are records, by the first of them, and all of them once more."""
    items = iter(examples)
    first = next(items, None)
    if isinstance(first, Mapping) and "role" in first:
        raise FeatherbackError("The data are the messages of one conversation; give a list of conversations: [[...]].")
    if _is_text(first) and not _is_pair(first):
        raise FeatherbackError(
            f"Example 0 is {shown(first)}; texts are given as (prompt, completion) tuples, as "
            '{"prompt": ..., "completion": ...}, or as {"text": ...}.'
        )
    return _is_record(first), [] if first is None else chain([first], items)


def records_beside(path: Path, examples: Examples, source: Source) -> Source:
    """Records written to a file beside the token file `path`, as a source to be read like `source`.

    It is for the caller to delete.
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
    prepare: Prepare,
    enough: int | None = None,
) -> PrepareReport | None:
    """Make the token file `path` of a source, or of examples in its place; the report, if there was text to prepare.

    `sequence`: tokens into which texts are cut; `most`: those that a given token list may have. FeatherbackError for
    what cannot be used.
    """
    written = None
    if examples is not None:
        records, examples = as_records(examples)
        if not records:
            write_tokens(path, examples, most, model.config.vocab_size)
            return None
        source = records_beside(path, examples, source)
        written = Path(source.paths[0])
    try:
        with Preparing(source.name) as shown:
            return prepare(str(model.path), source, path, sequence, shown.update, enough)
    finally:
        if written is not None:
            written.unlink(missing_ok=True)


def same_tokens(one: TokenFile, other: TokenFile) -> bool:
    """Whether two token files hold the same examples; what else is said of them does not count."""
    pairs = ((one.seq(i), other.seq(i)) for i in range(len(one)))
    return len(one) == len(other) and all(
        np.array_equal(mine, theirs) for each in pairs for mine, theirs in zip(*each, strict=True)
    )


def _lines(examples: Examples) -> Iterator[str]:
    for number, example in enumerate(examples):
        if not _is_record(example):
            raise FeatherbackError(
                f"Example {number} is {shown(example)}; it must be a record, a list of messages or a "
                f"(prompt, completion) tuple, like the examples before it."
            )
        record = _as_record(example)
        try:
            yield json.dumps(record, ensure_ascii=True)
        except (TypeError, ValueError, RecursionError) as error:
            raise FeatherbackError(f"Example {number} holds what JSON cannot: {error}.") from None


def _is_record(example: object) -> bool:
    if isinstance(example, Mapping) or _is_pair(example):
        return True
    return isinstance(example, (list, tuple)) and bool(example) and isinstance(example[0], Mapping)


def _is_pair(example: object) -> bool:
    """A prompt and its completion as texts."""
    return isinstance(example, tuple) and len(example) == 2 and all(isinstance(part, str) for part in example)


def _is_text(example: object) -> bool:
    """A text, or several."""
    if isinstance(example, (list, tuple)):
        return bool(example) and isinstance(example[0], str)
    return isinstance(example, str)


def _as_record(example: Any) -> Mapping[str, Any]:
    """An example as a line of a data file has it."""
    if isinstance(example, Mapping):
        return example
    return dict(zip(("prompt", "completion"), example)) if _is_pair(example) else {"messages": example}


def _tokens_and_labels(example: Any, number: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """A tuple of two lists is tokens and labels; anything else, a tuple of numbers too, is tokens alone."""
    pair = isinstance(example, tuple) and len(example) == 2 and not all(np.ndim(part) == 0 for part in example)
    tokens, labels = example if pair else (example, example)
    try:
        return np.asarray(tokens), np.asarray(labels)
    except ValueError:  # lists of different lengths in it
        raise FeatherbackError(f"Example {number} is no list of token ids.") from None


def write_tokens(path: Path, examples: Examples, seq_len: int, vocab_size: int) -> None:
    """Write token lists to a token file; FeatherbackError for what a model of so many tokens cannot be trained on."""
    with TokenFileWriter(path) as writer:
        for number, example in enumerate(examples):
            ids, wanted = _tokens_and_labels(example, number)
            if ids.ndim != 1 or ids.size == 0 or ids.shape != wanted.shape or ids.dtype.kind not in "iu":
                raise FeatherbackError(
                    f"Example {number} is no list of token ids, or its labels are of another length."
                )
            if ids.min() < 0 or ids.max() >= vocab_size:
                raise FeatherbackError(f"Example {number} has a token id outside 0..{vocab_size - 1}.")
            if ids.size > seq_len:
                raise FeatherbackError(
                    f"Example {number} has {ids.size} tokens, more than the sequence length {seq_len}."
                )
            trained = wanted != IGNORE
            if not np.array_equal(wanted[trained], ids[trained]):
                raise FeatherbackError(f"Example {number} has a label that is neither its token nor {IGNORE}.")
            writer.add(ids, trained)
        if not writer.n_targets:
            raise FeatherbackError(
                "The data have no trained token: every label is -100, or every example has one token."
            )
