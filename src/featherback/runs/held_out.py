"""Examples of the data that are held out of the training, where no held-out data were named.

The loss on them says whether a run learns or only repeats: its best adapter is kept, and it ends when it gets worse.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback.data.duplicates import Known, marked
from featherback.data.token_file import TokenFile, aside, choosing
from featherback.runs.config import TrainConfig
from featherback.runs.run_directory import RunDirectory

FEWEST = 40
"""Examples of data from which some are held out: a mean over one or two would be chance."""
LEAST, MOST = 4, 64
"""Examples that are held out, whatever the share: enough to mean something, few enough to be measured ten times."""
_HELD = 1 << 20  # bytes of a token file that are in memory while it is looked through
SPARE = 4
"""Times as many are looked at, since copies of others are not taken: they would be trained on."""


def hold_out(run: RunDirectory) -> None:
    """Take the share that the run's options name from its data, chosen by its seed, if it has no held-out data.

    It may be called again, also after it was killed: examples are taken once.
    """
    data, config = run.record["data"], run.config
    if "eval" in data or not config.eval_share:
        return
    path, taken = run.tokens / "train.tokens", run.tokens / "eval.tokens"
    # If they are of another file, the rest of that is in place already.
    if not taken.exists() or TokenFile(taken).metadata["taken_from"] == TokenFile(path).checksum:
        split(path, taken, config)
    if taken.exists():
        rest, held = TokenFile(path), TokenFile(taken)
        evaluated = {**counts(held), "sequences_before": len(rest) + len(held)}
        run.update(data={**data, "train": {**data["train"], **counts(rest)}, "eval": evaluated})


def counts(file: TokenFile) -> dict[str, int]:
    """What the record of a run says of a token file."""
    return {"sequences": len(file), "tokens": file.n_tokens, "supervised_tokens": file.n_targets}


def most_before(trained: int, config: TrainConfig) -> int:
    """Tokens of data of which so many are left when some are held out."""
    return math.ceil(trained / (1 - config.eval_share)) + LEAST * config.sequence


def also_trained(path: Path, trained: Path) -> dict[str, Any]:
    """How many sequences of the held-out token file `path` are in the file `trained` as well, token for token and with
    the same supervised ones, as `PrepareReport` has it."""
    held, others, known = TokenFile(path), TokenFile(trained), Known()
    lengths: set[int] = set()
    for mark, size in _marks(held):
        known.note(mark)
        lengths.add(size)
    for mark, _ in _marks(others, lengths):
        known.see(mark)
    return {"also_trained": known.count, "also_trained_exact": known.is_exact}


def _marks(file: TokenFile, lengths: set[int] | None = None) -> Iterator[tuple[int, int]]:
    """(mark, number of tokens) of each sequence of one of these lengths, or of all; little of the file is held."""
    for _, tokens, supervised in _sequences(file, lengths):
        yield marked(supervised.tobytes(), marked(tokens.tobytes())), tokens.size


def _sequences(
    file: TokenFile, lengths: Collection[int] | None = None
) -> Iterator[tuple[int, NDArray[np.int32], NDArray[np.bool_]]]:
    """(number, tokens, supervised) of each sequence of one of these lengths, or of all; little of the file is held."""
    wanted, read = None if lengths is None else list(lengths), 0
    for start, some in file.all_lengths():
        for at in range(some.size) if wanted is None else np.flatnonzero(np.isin(some, wanted)):
            tokens, supervised = file.seq(start + int(at))
            yield start + int(at), tokens, supervised
            if (read := read + tokens.nbytes) > _HELD:
                file.drop_pages()
                read = 0


def was_split(run: RunDirectory) -> bool:
    """Whether the held-out data of a run are some of its data."""
    return "sequences_before" in run.record["data"].get("eval", {})


def split(path: Path, taken: Path, config: TrainConfig) -> None:
    """Let the token file `path` be without some of its examples, which are in `taken`, written first; neither, if the
    data or the steps are few. No token is written again."""
    file = TokenFile(path)
    if not (chosen := np.array(_choose(file, config))).size:
        return
    whole = aside(file)
    with choosing(whole, taken) as held:
        held.metadata.update(taken_from=file.checksum)
        held.add(file.starts[chosen], file.ends[chosen])
        held.n_targets = sum(int(np.count_nonzero(file.seq(i)[1][1:])) for i in chosen)
    with choosing(whole, path) as rest:
        rest.metadata.update(file.metadata)
        for start, lengths in file.all_lengths():
            kept = np.setdiff1d(np.arange(start, start + lengths.size), chosen, assume_unique=True)
            rest.add(file.starts[kept], file.ends[kept])
        rest.n_targets = file.n_targets - held.n_targets


def _choose(file: TokenFile, config: TrainConfig) -> list[int]:
    """Examples to hold out, in order: with something to predict, each there only once; none if the data are few."""
    if len(file) < FEWEST:
        return []
    count = min(MOST, max(LEAST, round(config.eval_share * len(file))))
    picked = random.Random(config.seed).sample(range(len(file)), min(len(file), SPARE * count))
    copies = _copies(file, picked)
    room = config.most_held_out(file.n_tokens, file.mean_length)
    chosen: list[int] = []
    for i in picked:
        tokens, supervised = file.seq(i)
        if len(chosen) < count and i not in copies and supervised[1:].any() and tokens.size <= room:
            chosen.append(i)
            room -= tokens.size
    return sorted(chosen) if len(chosen) >= LEAST else []


def _copies(file: TokenFile, picked: Sequence[int]) -> set[int]:
    """Those of the examples picked that are in the file more than once."""
    by_length: dict[int, dict[bytes, list[int]]] = {}
    for i in picked:
        tokens, _ = file.seq(i)
        by_length.setdefault(tokens.size, {}).setdefault(tokens.tobytes(), []).append(i)
    copies: set[int] = set()
    for i, tokens, _ in _sequences(file, by_length):
        alike = by_length[tokens.size].get(tokens.tobytes(), [])
        copies.update(each for each in alike if each != i)
    return copies
