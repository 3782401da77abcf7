"""Holds a share of the training examples out if the user gave no held-out data.

The loss on them shows whether a run generalises or only memorises: the best adapter is kept, and the run stops when the
loss no longer falls.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback.data.duplicates import OverlapCounter, hash_part
from featherback.data.token_file import TokenFile, as_whole_file, selecting
from featherback.runs.config import TrainConfig
from featherback.runs.record import TokenCounts
from featherback.runs.run_directory import RunDirectory

FEWEST = 40
"""Minimum number of examples from which some are held out: the mean of one or two losses would be chance."""
LEAST, MOST = 4, 64
"""Limits of the number of held-out examples: enough to be meaningful, few enough to be measured ten times."""
_HELD = 1 << 20  # bytes of a token file that are kept in memory while it is scanned
SPARE = 4
"""Candidates per held-out example: duplicates are not held out, since a copy would be trained on."""


def hold_out(run: RunDirectory) -> None:
    """Hold out the share `eval_share` of a run's data, chosen by its seed, unless it has held-out data already.

    Calling it again is safe, also after the process was killed: examples are held out only once.
    """
    data, config = run.record.data, run.config
    if "eval" in data or not config.eval_share:
        return
    path, taken = run.tokens / "train.tokens", run.tokens / "eval.tokens"
    # If `taken` was made from a different file, train.tokens already contains only the rest.
    if not taken.exists() or TokenFile(taken).metadata["taken_from"] == TokenFile(path).checksum:
        split(path, taken, config)
    if taken.exists():
        rest, held = TokenFile(path), TokenFile(taken)
        evaluated = TokenCounts(**counts(held), sequences_before=len(rest) + len(held))
        run.update(data={"train": replace(data["train"], **counts(rest)), "eval": evaluated})


def counts(file: TokenFile) -> dict[str, Any]:
    """Return the counts that a run's record has for a token file."""
    return {"sequences": len(file), "tokens": file.n_tokens, "supervised_tokens": file.n_targets}


def tokens_before_split(trained: int, config: TrainConfig) -> int:
    """Return how many tokens of data are needed so that `trained` tokens are left after holding some out."""
    return math.ceil(trained / (1 - config.eval_share)) + LEAST * config.sequence


def count_also_trained(path: Path, trained: Path) -> dict[str, Any]:
    """Count the sequences of the held-out token file `path` that are also in the file `trained`.

    Tokens and supervised positions must be equal. The result has the fields of `PrepareReport`.
    """
    held, others, known = TokenFile(path), TokenFile(trained), OverlapCounter()
    lengths: set[int] = set()
    for mark, size in _marks(held):
        known.note(mark)
        lengths.add(size)
    for mark, _ in _marks(others, lengths):
        known.see(mark)
    return {"also_trained": known.count, "also_trained_exact": known.is_exact}


def _marks(file: TokenFile, lengths: set[int] | None = None) -> Iterator[tuple[int, int]]:
    """Yield (hash, number of tokens) of each sequence, or of those with one of `lengths`, using little memory."""
    for _, tokens, supervised in _sequences(file, lengths):
        yield hash_part(supervised.tobytes(), hash_part(tokens.tobytes())), tokens.size


def _sequences(
    file: TokenFile, lengths: Collection[int] | None = None
) -> Iterator[tuple[int, NDArray[np.int32], NDArray[np.bool_]]]:
    """Yield (index, tokens, supervised) of each sequence, or of those with one of `lengths`, using little memory."""
    wanted, read = None if lengths is None else list(lengths), 0
    for start, some in file.all_lengths():
        for at in range(some.size) if wanted is None else np.flatnonzero(np.isin(some, wanted)):
            tokens, supervised = file.seq(start + int(at))
            yield start + int(at), tokens, supervised
            if (read := read + tokens.nbytes) > _HELD:
                file.drop_pages()
                read = 0


def was_split(run: RunDirectory) -> bool:
    """Return whether a run's held-out data were taken from its training data."""
    return isinstance(held := run.record.data.get("eval"), TokenCounts) and held.sequences_before is not None


def split(path: Path, taken: Path, config: TrainConfig) -> None:
    """Move some examples of the token file `path` to the new file `taken`, which is written first.

    Nothing changes if the data or the steps are too few. Tokens are not copied: both files refer to the same ones.
    """
    file = TokenFile(path)
    if not (chosen := np.array(_choose(file, config))).size:
        return
    whole = as_whole_file(file)
    with selecting(whole, taken) as held:
        held.metadata.update(taken_from=file.checksum)
        held.add(file.starts[chosen], file.ends[chosen])
        held.n_targets = sum(int(np.count_nonzero(file.seq(i)[1][1:])) for i in chosen)
    with selecting(whole, path) as rest:
        rest.metadata.update(file.metadata)
        for start, lengths in file.all_lengths():
            kept = np.setdiff1d(np.arange(start, start + lengths.size), chosen, assume_unique=True)
            rest.add(file.starts[kept], file.ends[kept])
        rest.n_targets = file.n_targets - held.n_targets


def _choose(file: TokenFile, config: TrainConfig) -> list[int]:
    """Return the sorted indices of examples to hold out: each has supervised tokens and no duplicate.

    Empty if the data are too few.
    """
    if len(file) < FEWEST:
        return []
    count = min(MOST, max(LEAST, round(config.eval_share * len(file))))
    picked = random.Random(config.seed).sample(range(len(file)), min(len(file), SPARE * count))
    copies = _duplicates(file, picked)
    room = config.most_held_out(file.n_tokens, file.mean_length)
    chosen: list[int] = []
    for i in picked:
        tokens, supervised = file.seq(i)
        if len(chosen) < count and i not in copies and supervised[1:].any() and tokens.size <= room:
            chosen.append(i)
            room -= tokens.size
    return sorted(chosen) if len(chosen) >= LEAST else []


def _duplicates(file: TokenFile, picked: Sequence[int]) -> set[int]:
    """Return the indices among `picked` whose example occurs in the file more than once."""
    by_length: dict[int, dict[bytes, list[int]]] = {}
    for i in picked:
        tokens, _ = file.seq(i)
        by_length.setdefault(tokens.size, {}).setdefault(tokens.tobytes(), []).append(i)
    copies: set[int] = set()
    for i, tokens, _ in _sequences(file, by_length):
        equal = by_length[tokens.size].get(tokens.tobytes(), [])
        copies.update(each for each in equal if each != i)
    return copies
