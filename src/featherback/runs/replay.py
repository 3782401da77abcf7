"""General examples among those of a run (`--replay`), so that the model keeps what it could do before."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from featherback.core.files import link_file
from featherback.core.naming import argument
from featherback.data.general import PROMPTS
from featherback.data.packing import permute
from featherback.data.prompts import check_vocabulary
from featherback.data.source import STDIN
from featherback.data.token_file import TokenFile, TokenFileWriter
from featherback.errors import FeatherbackError
from featherback.runs.examples import make_tokens
from featherback.runs.held_out import hold_out
from featherback.runs.record import Replay

if TYPE_CHECKING:
    from featherback.data.source import Source
    from featherback.models.model import Model
    from featherback.runs.config import TrainConfig
    from featherback.runs.run_directory import RunDirectory
    from featherback.runs.tools import Tools

OWN = "own.tokens"
"""The training examples of a run without those that are replayed."""
GENERAL = "replay.tokens"
"""The general examples of a run."""
ASKED = "prompts.tokens"
"""What the model answers with `--replay auto`."""
AUTO = "auto"
_MARK = "replayed"


def replay_source(config: TrainConfig, path: str) -> Source:
    """Return how general examples are read: the options that describe the columns of the data are not theirs."""
    return replace(config.source((path,)), columns={}, table={}, me=(), long="keep")


def check_replay(config: TrainConfig) -> None:
    """Raise FeatherbackError if the file with general examples cannot be read."""
    from featherback.data.readers import check_use, data_files  # not in the training process

    if config.replay in (None, AUTO):
        return
    if config.replay == STDIN:
        raise FeatherbackError(f"{argument('replay')} cannot be standard input. Name a file or a folder.")
    source = replay_source(config, config.replay)
    check_use(source, data_files(source))


def prepare_replay(run: RunDirectory, config: TrainConfig, model: Model, tools: Tools) -> None:
    """Write general examples to the run's directory as tokens: as many as are needed."""
    if config.replay is None:
        return
    path, source = run.tokens / GENERAL, replay_source(config, config.replay)
    wanted: int | None = wanted_tokens(TokenFile(run.tokens / "train.tokens"), config.replay_share)
    if config.replay == AUTO:
        check_vocabulary(model.config.vocab_size)
        path, source, wanted = run.tokens / ASKED, replace(source, paths=(str(PROMPTS),), form="prompts"), None
    most = model.config.max_position_embeddings
    make_tokens(path, source, config.sequence, most, None, model, tools.encode, wanted)
    TokenFile(path).check(model.config.vocab_size)


def arrange(run: RunDirectory) -> None:
    """Hold out some examples of a run, and add general ones to the rest.

    Calling it again is safe, also after the process was killed.
    """
    if run.config.replay is None or not is_mixed(run):
        hold_out(run)
    if run.config.replay is not None and (run.tokens / GENERAL).exists():
        _mix_in(run)


def is_mixed(run: RunDirectory) -> bool:
    """Return whether the general examples are among the training examples."""
    return TokenFile(run.tokens / "train.tokens").metadata.get(_MARK) is not None


def _mix_in(run: RunDirectory) -> None:
    """Add general examples to the training examples of a run, until they have their share of the tokens.

    Their order depends on the seed. If there are too few, they are repeated. Those that are longer than the sequence
    length are left out.
    """
    config, path = run.config, run.tokens / "train.tokens"
    own, general = run.tokens / OWN, TokenFile(run.tokens / GENERAL)
    if not is_mixed(run):
        link_file(path, own)
        _write(path, TokenFile(own), general, config)
    mixed, before = TokenFile(path), TokenFile(own)
    found = Replay(examples=len(mixed) - len(before), tokens=mixed.n_tokens - before.n_tokens, different=len(general))
    run.update(replay=found)


def own_tokens(run: RunDirectory) -> Path:
    """Return the file with the training examples of a run, without those that are replayed."""
    return run.tokens / (OWN if run.config.replay is not None and is_mixed(run) else "train.tokens")


def _write(path: Path, own: TokenFile, general: TokenFile, config: TrainConfig) -> None:
    with TokenFileWriter(path) as writer:
        for file, places in ((own, range(len(own))), (general, _chosen(own, general, config))):
            for read, i in enumerate(places):
                writer.add(*file.seq(i))
                if read % 1024 == 1023:
                    file.drop_pages()
        writer.metadata.update({**own.metadata, _MARK: general.checksum})


def _chosen(own: TokenFile, general: TokenFile, config: TrainConfig) -> Iterator[int]:
    """Yield the numbers of the general examples to add, epoch by epoch."""
    left = wanted_tokens(own, config.replay_share)
    if int((general.ends - general.starts).min()) > config.sequence:
        raise FeatherbackError(
            f"All examples of {argument('replay', config.replay)} are longer than {config.sequence} tokens, the "
            f"sequence length of the run. Use shorter ones, or a larger {argument('seq_len')}."
        )
    for epoch in count():
        for i in permute(np.arange(len(general)), len(general), config.seed, epoch).tolist():
            size = int(general.ends[i] - general.starts[i])
            if size <= config.sequence:
                yield i
                left -= size
            if left <= 0:
                return


def wanted_tokens(own: TokenFile, share: float) -> int:
    """Return how many tokens make the share of all tokens."""
    return math.ceil(own.n_tokens * share / (1 - share))
