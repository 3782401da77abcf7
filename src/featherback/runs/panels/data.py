"""Options of the data: which files, how long a sequence is, what makes a batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from featherback.core.naming import argument
from featherback.core.options import Panel, option
from featherback.data.packing import Batching
from featherback.data.source import STDIN, Source, columns_of, what_is_long
from featherback.errors import FeatherbackError, shown
from featherback.runs import parse

SEQUENCE = 256
"""Tokens of a sequence, unless examples need more."""

_files = partial(option, None, parse=parse.paths, is_path=True, several=True, metavar="PATH", free_on_resume=True)


@dataclass(frozen=True, kw_only=True)
class DataOptions(Panel):
    title = "Data"

    data: tuple[str, ...] | None = _files(  # for the record; the run has its own token file. None: only to resume
        help="Chats, prompts with answers, or text, in JSON, CSV, Parquet, .txt, a folder, or - (standard input). "
        "May be named again. A resumed run has its own."
    )
    seq_len: int | None = option(  # None: until the data are known
        None,
        help="Longest sequence, in tokens. Text is cut into such; a longer chat is refused, unless --cut.",
        least=2,
        shown_default=f"what the longest example needs, and at least {SEQUENCE} unless --batch-size is named",
    )
    cut: bool = option(False, help="Cut chats that are too long at the end, and say how many.")
    batch_size: int | None = option(
        None,
        help="Examples in a batch, whatever their lengths; a piece of a text counts as one.",
        least=1,
        shown_default="as many as fit into --batch-tokens",
    )
    batch_tokens: int | None = option(
        None,
        help="Packing, in place of --batch-size: a batch holds as many whole examples as fit into this many tokens, "
        "and at least one. They do not see each other.",
        least=2,
        instead_of="batch_size",
        shown_default="--seq-len",
    )
    eval_data: tuple[str, ...] | None = _files(
        help="Held-out data, whose loss is measured; the best adapter, or model, is kept."
    )
    eval_share: float = option(
        0.05,
        help="Share of the data that is held out where no --eval-data are named: 4 to 64 examples, of 40 or more.",
        least=0,
        below=1,
    )
    columns: tuple[str, ...] | None = option(
        None,
        help="What a key is called in the data: --map prompt=question, and again for others.",
        flags=("--map",),
        parse=parse.columns,
        several=True,
        metavar="KEY=COLUMN",
    )
    skip_bad: bool = option(
        False, help="Leave out examples that cannot be used, and list them, instead of ending with the first."
    )

    def check_rules(self) -> None:
        super().check_rules()
        if (*(self.data or ()), *(self.eval_data or ())).count(STDIN) > 1:
            raise FeatherbackError("Standard input (-) can be named once.")

    def source(self, paths: tuple[str, ...]) -> Source:
        """How data are read."""
        long = what_is_long(self.seq_len, self.cut)
        return Source(paths, columns_of(self.columns or ()), self.skip_bad, long)

    @property
    def sequence(self) -> int:
        """The longest sequence, as far as it is known."""
        return SEQUENCE if self.seq_len is None else self.seq_len

    @property
    def batching(self) -> Batching:
        """Which examples make a batch, as far as the sequence length is known."""
        return Batching(self.sequence, self.batch_tokens, self.batch_size)

    @property
    def batch_in_checksums(self) -> dict[str, int | None]:
        """The batch's fields in the checksums of a run. Where it is packed into whole sequence lengths, they are as
        versions that knew nothing else recorded it, so that their checksums stay.
        """
        lengths, rest = divmod(self.batching.full, self.sequence)
        if self.batch_size is None and not rest:
            return {"batch_size": lengths}
        return {"batch_size": self.batch_size, "batch_tokens": self.batching.full}


def packed_before(batch_size: Any, seq_len: Any) -> dict[str, int | None]:
    """The fields of a batch as versions without --batch-tokens recorded it, all of whose batches were packed: their
    batch size counted sequence lengths. FeatherbackError if the length is unknown and needed.
    """
    if batch_size in (None, 1):
        return {"batch_size": None, "batch_tokens": None}
    if isinstance(batch_size, int) and isinstance(seq_len, int):
        return {"batch_size": None, "batch_tokens": batch_size * seq_len}
    raise FeatherbackError(
        f"An earlier version of Featherback wrote batch_size: {shown(batch_size)}, which meant so many times seq_len "
        f"tokens, and no seq_len is there; begin another run, with {argument('batch_tokens')}."
    )
