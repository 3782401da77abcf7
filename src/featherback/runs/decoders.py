"""Open a decoder within a memory budget: the fastest one that fits."""

from __future__ import annotations

import os
import sys
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from featherback.core.naming import argument
from featherback.core.sizes import MB, whole_megabytes
from featherback.core.system import folders
from featherback.engine import backend, kernels
from featherback.engine.backend.protocol import Card
from featherback.engine.budget import Budget, BudgetError
from featherback.engine.formats.mapping import most_mapped
from featherback.engine.host.machine import disk_folder
from featherback.engine.host.process_tree import tree_unshared_rss
from featherback.engine.host.reading import drop_maps
from featherback.errors import FeatherbackError
from featherback.exports import formats
from featherback.infer.batching import SLOTS, WAITING, Batcher
from featherback.infer.decoder import Decoder
from featherback.infer.joint_needs import fitting_joint, smallest_joint
from featherback.infer.key_cache import EXACT
from featherback.infer.layout import DECODE, check_decode, layouts
from featherback.infer.layout import Layout as DecoderLayout
from featherback.infer.lookup import GUESSES
from featherback.infer.needs import CODE, fitting, needs, rows_of_logits, smallest
from featherback.infer.prefix_files import PrefixFiles
from featherback.methods.memory.plan import LEAST, MOST, Weights
from featherback.models.adapter import Adapter
from featherback.models.architecture.experts import ExpertsConfig
from featherback.models.form import Layout
from featherback.models.model import Model, matrices
from featherback.runs.account import BETWEEN_RUNS, own_peak

T = TypeVar("T")


@dataclass(frozen=True)
class Within:
    """The memory that a decoder may take, and where it puts what does not fit.

    `memory`: the limit of the whole process in bytes; "least" for the smallest decoder; None or "max" for no limit.
    `weights`: how another phase of the command reads the weights; None: any way. `folder`: for temporary files; None:
    the system's folder for them, or the cache if that is in memory. `whole`: the limit also covers what the process has
    held before and its child processes, because it is a command's own process. `kv`: the type of keys and values.
    `decode`: "exact", or "fast" to round what the weights multiply in decoding. Raises FeatherbackError for any other.
    `lookup`: guess tokens from repetitions in the text, if there is room.
    """

    memory: int | str | None = None
    weights: Weights | None = None
    folder: Path | None = None
    whole: bool = False
    kv: str = EXACT
    decode: str = DECODE[0]
    lookup: bool = True

    def __post_init__(self) -> None:
        check_decode(self.decode)

    @property
    def budget(self) -> Budget:
        """The budget that each phase asks before it allocates."""
        return Budget(self.memory if isinstance(self.memory, int) else None)

    @property
    def is_limited(self) -> bool:
        """Whether memory matters more than speed."""
        return self.memory not in (None, MOST)


UNLIMITED = Within()


def open_decoder(
    model: Model, adapter: Adapter | Path | None, capacity: int, compute: str, within: Within = UNLIMITED
) -> Decoder:
    """Open the fastest decoder for `capacity` tokens that fits, with the adapter (or the one at a path).

    Its temporary files have no names, so nothing is left if the process is killed. Raises BudgetError, before it
    allocates, if even the smallest decoder does not fit.
    """
    folder, opened = within.folder or disk_folder(), None
    if within.is_limited:
        drop_maps(matrices(model))  # free the pages that were read before
    if isinstance(adapter, Path):
        opened = open_adapter(model, adapter, within)
    lora = opened or adapter
    assert not isinstance(lora, Path)
    try:
        layout, guesses = _layout(model, lora, capacity, compute, within)
        decoder = Decoder(model, lora, capacity, compute, layout, folder, within.kv, guesses)
    except BaseException:
        if opened is not None:
            opened.close()
        raise
    if opened is not None:
        decoder.on_close = weakref.finalize(decoder, opened.close)
    return decoder


def open_adapter(model: Model, path: Path, within: Within = UNLIMITED) -> Adapter:
    """Load the adapter at `path`. Within a limit, a file holds its values, and each pass reads one layer at a time."""
    if not within.is_limited:
        return formats.load(model, path)
    return _paged(model, path, within, within.folder or disk_folder())


def open_batcher(
    model: Model, capacity: int | None, compute: str, within: Within = UNLIMITED, waiting: int = WAITING,
    slots: int = SLOTS, prefixes: PrefixFiles | None = None,
) -> Batcher:  # fmt: skip
    """Open a batcher for texts of at most `capacity` tokens. `slots`: how many are answered at the same time.

    `waiting`: how many requests may wait. Within a budget, the weights come first: requests share what is left. Keys
    and values that do not fit are in files without names. `prefixes`: files for prefixes that later processes find.

    Raises BudgetError, before it allocates, if even the smallest does not fit.
    """
    if within.is_limited:
        drop_maps(matrices(model))  # free the pages that were read before
    capacity = min(capacity or model.config.max_position_embeddings, model.config.max_position_embeddings)
    memory: int | None
    if within.memory == LEAST:
        layout, memory = smallest_joint(model, slots, capacity, compute, within.weights, within.kv, within.decode)
    else:
        layout, memory = fitted(
            within,
            lambda budget: fitting_joint(
                model, slots, capacity, compute, budget, within.weights, within.kv, within.decode
            ),
        )
    return Batcher(
        model, capacity=capacity, compute=compute, layout=layout, kv=within.kv, slots=slots, memory=memory,
        waiting=waiting, folder=(within.folder or disk_folder()) if within.is_limited else None, prefixes=prefixes,
    )  # fmt: skip


def _layout(
    model: Model, lora: Adapter | None, capacity: int, compute: str, within: Within
) -> tuple[DecoderLayout, int]:
    """Choose the layout of a decoder, and how many tokens it guesses at a time."""
    if (card := backend.card()) is not None:
        return _layout_on(card, model, lora, capacity, compute, within), 0
    if within.memory == LEAST:
        return smallest(model, lora, capacity, compute, within.weights, within.kv, within.decode), 0

    def choose(budget: Budget) -> tuple[DecoderLayout, int]:
        layout = fitting(model, lora, capacity, compute, budget, within.weights, within.kv, within.decode)
        # The rows of a pass have different experts, so they share less of the weights.
        guesses = GUESSES if within.lookup and not isinstance(model.config, ExpertsConfig) else 0
        if guesses and budget.room is not None:
            tokens, rows = min(capacity, model.config.max_position_embeddings), rows_of_logits(guesses)
            needed = needs(model, lora, tokens, compute, layout, within.kv, rows).total + CODE
            guesses = guesses if needed <= budget.room else 0
        return layout, guesses

    return fitted(within, choose)


def _layout_on(
    card: Card, model: Model, lora: Adapter | None, capacity: int, compute: str, within: Within
) -> DecoderLayout:
    """Return the fastest layout that fits in a card's memory: with all weights, or with two buffers for them.

    Raises FeatherbackError if none fits, if the card cannot read the weights, or if keys are not stored exactly.
    """
    if within.kv != EXACT:
        raise FeatherbackError(
            f"{argument('kv', within.kv)} does not work with {argument('device', card.name)}. Remove {argument('kv')}."
        )
    card.check(matrix.type for matrix in matrices(model))
    capacity, least = min(capacity, model.config.max_position_embeddings), sys.maxsize
    for layout in (*layouts("resident", within.decode), *layouts("streamed", within.decode)):
        if layout.cache != "ram":
            continue
        widest = max(model.config.widest_unit, layout.vocab_tile or model.config.vocab_size // layout.chunk)
        needed = needs(model, lora, capacity, compute, layout, within.kv).total
        needed += card.temporaries(layout.chunk, widest)
        if needed <= card.memory:
            return layout
        least = min(least, card.enough(needed))
    raise FeatherbackError(
        f"Generating needs at least {argument('vram', f'{whole_megabytes(least) // MB}MB')} on {card.name}, and "
        f"{card.memory // MB} MB are allowed or free. Shorten the text, or use a smaller model."
    )


def fitted(within: Within, choose: Callable[[Budget], T]) -> T:
    """Return what `choose` finds for the budget. A BudgetError names an amount that is enough for the whole process."""
    limit = within.budget.limit
    if limit is None or not within.whole:
        return choose(within.budget)
    children = max(0, tree_unshared_rss(os.getpid()) - kernels.memory_now()[1])  # a chat template is one
    peak = own_peak() + children + BETWEEN_RUNS
    try:
        chosen = choose(Budget(limit - children))
    except BudgetError as error:
        raise BudgetError(error.what, limit, max(error.needed + children + BETWEEN_RUNS, peak)) from None
    if peak > limit + BETWEEN_RUNS:
        raise BudgetError("The tokenizer or the adapter", limit, peak)
    return chosen


def _paged(model: Model, path: Path, within: Within, folder: Path) -> Adapter:
    """Load the adapter at `path` into a file without a name, from which the decoder reads one layer at a time."""
    if not within.whole:  # else `_layout` looks at the peak, so that a refusal names an amount for all phases
        size = Layout(model.blocks, formats.form(model, path)).size
        within.budget.ask(formats.LOADED * 4 * size + most_mapped(4 * size), "The adapter")
    with tempfile.TemporaryDirectory(dir=folder, prefix="featherback-") as place:
        file = Path(place) / "adapter.f32"
        adapter = formats.load(model, path, file=file)
        folders.remove_open(file)
        return adapter
