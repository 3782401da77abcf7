"""Options of the data: files, sequence length and batches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from featherback.core.naming import argument
from featherback.core.options import Panel, option
from featherback.data.packing import Batching
from featherback.data.source import STDIN, Source, columns_of, table_options, treatment_of_long
from featherback.errors import FeatherbackError
from featherback.runs import parse

SEQUENCE = 256
"""Default sequence length in tokens, if no example is longer."""
TOGETHER = 512
"""Default number of tokens that pass together, of texts that are compared."""

_files = partial(option, None, parse=parse.paths, is_path=True, several=True, metavar="PATH", free_on_resume=True)


@dataclass(frozen=True, kw_only=True)
class DataOptions(Panel):
    title = "Data"

    data: tuple[str, ...] | None = _files(  # for the record: the run has its own token file. None only when resuming
        help="Training data: chats, prompts with answers, or text, in a JSON, CSV, Parquet or .txt file, a folder, or "
        "- for standard input. Repeat the option for more files. Not needed with --resume.",
        brief="Your examples: CSV, JSON, Parquet, text, or a folder",
    )
    seq_len: int | None = option(  # None until the data are known
        None,
        help="Maximum sequence length in tokens. Longer texts are split. Longer chats are rejected, or truncated with "
        f"--cut. The default is the longest example, and at least {SEQUENCE} unless --batch-size is given.",
        brief="Maximum tokens per example",
        least=2,
        shown_default="longest example",
        aliases=("--max-seq-length", "--max-length"),
    )
    cut: bool = option(False, help="Truncate chats that are longer than --seq-len, and print how many.")
    batch_size: int | None = option(
        None,
        help="Examples per batch, whatever their lengths. A piece of a text counts as one example.",
        least=1,
        shown_default="packed, see --batch-tokens",
        aliases=("--per-device-train-batch-size",),
    )
    batch_tokens: int | None = option(
        None,
        help="Packing: fill each batch with as many whole examples as fit into this many tokens, and at least one. "
        "Attention does not cross from one example to the next. Replaces --batch-size.",
        least=2,
        instead_of="batch_size",
        shown_default="--seq-len",
    )
    packing: bool | None = option(
        None,
        help="true: pack examples into batches of --batch-tokens; with --batch-size N, into N x --seq-len tokens. "
        "false: batches of --batch-size examples.",
        parse=parse.boolean,
        metavar="true|false",
        words=("true", "false"),
        shown_default="true without --batch-size",
    )
    eval_data: tuple[str, ...] | None = _files(
        help="Held-out data. Their loss is measured during training, and the best adapter (or model) is kept.",
        brief="Held-out examples, to measure progress and keep the best",
    )
    eval_share: float = option(
        0.05,
        help="Share of the data to hold out if --eval-data is not given: at least 4 and at most 64 examples. "
        "With fewer than 40 examples, nothing is held out.",
        least=0,
        below=1,
    )
    replay: str | None = option(
        None,
        help="General examples to mix in, so that the model forgets less: a file or a folder that --data could name. "
        "As many as give --replay-share of the tokens are taken, and repeated if there are too few. auto: the model "
        "writes them itself before training.",
        parse=parse.path,
        metavar="PATH|auto",
    )
    replay_share: float = option(0.2, help="Share of the tokens of an epoch that come from --replay.", above=0, below=1)
    columns: tuple[str, ...] | None = option(
        None,
        help="Read KEY from a column of another name: --map prompt=question. Repeat the option for more columns.",
        flags=("--map",),
        parse=parse.columns,
        several=True,
        metavar="KEY=COLUMN",
    )
    table: tuple[str, ...] | None = option(
        None,
        help="How a table is written, if that is not found out: separator=;, quotes=no, header=no, encoding=cp1252, "
        "sheet=NAME for a spreadsheet, or html=text if cells hold HTML. Repeat the option for more.",
        parse=parse.table,
        several=True,
        metavar="KEY=VALUE",
    )
    me: tuple[str, ...] | None = option(
        None,
        help="In chats and mail of people: the person whose messages are the answers, as the file names them. Repeat "
        "the option for other names of the same person.",
        parse=parse.people,
        several=True,
        metavar="NAME",
    )
    labels: tuple[str, ...] | None = option(
        None,
        help="With --objective classify: the names of all labels, in the order of their ids. The default is the labels "
        "of the training data, in alphabetical or numerical order.",
        parse=parse.names,
        metavar="NAMES",
        shown_default="those of the data",
    )
    skip_bad: bool = option(
        False, help="Skip examples that cannot be used, and list them, instead of stopping at the first."
    )

    def check_rules(self) -> None:
        super().check_rules()
        if (*(self.data or ()), *(self.eval_data or ())).count(STDIN) > 1:
            raise FeatherbackError("Standard input (-) can be used only once.")
        if self.replay is None and self.replay_share != DataOptions.replay_share:
            share = argument("replay_share", self.replay_share)
            raise FeatherbackError(f"{share} only works with {argument('replay', 'PATH')}; add it, or remove {share}.")
        self._settle_packing()

    def _settle_packing(self) -> None:
        """Turn `packing` into `batch_size` and `batch_tokens`; raises FeatherbackError if they contradict it."""
        size, limit = self.batch_size, self.batch_tokens
        if self.packing and size is not None:
            on, batch = argument("packing", True), argument("batch_size", size)
            if self.seq_len is None:
                raise FeatherbackError(
                    f"{on} with {batch} fills each batch with {size} times {argument('seq_len')} tokens, and "
                    f"{argument('seq_len')} is missing. Add it, for example {argument('seq_len', 1024)}."
                )
            object.__setattr__(self, "batch_tokens", size * self.seq_len)
            object.__setattr__(self, "batch_size", None)
        elif self.packing is False and limit is not None:
            off, batch = argument("packing", False), argument("batch_tokens", limit)
            raise FeatherbackError(f"{off} contradicts {batch}, which packs examples. Remove one of the two.")
        elif self.packing is False and size is None:
            example = argument("batch_size", 4)
            raise FeatherbackError(f"{argument('packing', False)} needs a number of examples: add {example}.")
        object.__setattr__(self, "packing", None)

    def source(self, paths: tuple[str, ...]) -> Source:
        """The data in `paths`, with the options for reading them."""
        long = treatment_of_long(self.seq_len, self.cut)
        return Source(
            paths,
            columns_of(self.columns or ()),
            self.skip_bad,
            long,
            table=table_options(self.table or ()),
            me=self.me or (),
        )

    @property
    def sequence(self) -> int:
        """The maximum sequence length in tokens. Until the data are known: the default, or what a batch can hold."""
        if self.seq_len is not None:
            return self.seq_len
        if self.batch_tokens is None:
            return SEQUENCE
        return max(2, min(SEQUENCE, self.batch_tokens // self.most_answers))

    @property
    def batching(self) -> Batching:
        """How examples are grouped into batches; with the default sequence length until the data are known."""
        return Batching(self.sequence * self.most_answers, self.batch_tokens, self.batch_size)

    @property
    def most_answers(self) -> int:
        """The most answers of an example, each of which may be as long as `sequence` with the prompt."""
        return 1
