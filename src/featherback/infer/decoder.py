"""The decoder: one forward pass over the layers per call, with keys, values and recurrent states cached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from featherback.engine import backend, kernels
from featherback.engine.backend.arena import aligned
from featherback.engine.backend.protocol import Array, Backend
from featherback.engine.host.checkpoints import Checkpoints
from featherback.engine.host.maps import MapWatch
from featherback.engine.host.piece_file import PieceFile
from featherback.engine.host.scattered import check_ids
from featherback.errors import FeatherbackError
from featherback.infer.cache import FLOAT, Cache, FileCache, RAMCache, has_states
from featherback.infer.key_cache import EXACT
from featherback.infer.layout import Layout
from featherback.infer.needs import Needs, needs, rows_of_logits
from featherback.infer.passes import Check, Passes, go_on
from featherback.methods.assembly import blocks_of
from featherback.methods.memory.resources import source
from featherback.models.adapter import Adapter
from featherback.models.model import Model
from featherback.nn.block import Block

Float32 = NDArray[np.float32]
Run = Callable[[NDArray[np.int32], int, int, Array, Check], None]
"""Runs tokens behind those in the cache and writes the output of the last ones."""


class Decoder:
    """Takes tokens and returns logits. The cache holds up to `capacity` tokens; its memory is used only as it fills.

    A resident decoder copies the adapter's values at the start, so later training does not affect it. With other
    layouts, a decoder reads the adapter's values in every pass. With LongRoPE, whose frequencies depend on the text's
    length, the cache is computed again once the text exceeds the model's original context, as transformers does.
    """

    def __init__(
        self,
        model: Model,
        adapter: Adapter | None = None,
        capacity: int | None = None,
        compute: str = "bf16",
        layout: Layout = Layout(),  # noqa: B008 - it cannot change
        folder: Path | None = None,
        kv: str = EXACT,
        guesses: int = 0,
    ) -> None:
        """`folder`: for cache files, if the layout has them. `kv`: the type of keys and values, one of `KINDS`.

        `guesses`: the most tokens that `Lookup` may guess at a time. A model with recurrent states has none.
        """
        self.on_close: Callable[[], object] = lambda: None  # what `close` calls last
        kernels.check_compute(compute)
        if model.family.is_encoder:
            raise FeatherbackError(
                f"{model.path} is an encoder ({model.family.called}), which writes no text; use `featherback embed`."
            )
        if adapter is not None and adapter.outputs:
            raise FeatherbackError(
                "The adapter ends in a head that scores texts, so it cannot write any; use `featherback classify`."
            )
        adapter, c = None if adapter is None else adapter.on(model), model.config
        self.model, self.compute, self.layout, self.kv = model, compute, layout, kv
        self.capacity = min(capacity or c.max_position_embeddings, c.max_position_embeddings)
        self.tokens: list[int] = []  # the tokens in the cache
        self.unsure = 0  # how many of them, at the end, are guesses that nothing has confirmed
        self._has_states = has_states(blocks_of(model, adapter))
        self.guesses = 0 if self._has_states else guesses
        self._stretched: list[bool] = []  # of the text in the cache
        self._maps = MapWatch(model.maps, model.close)
        self.needs: Needs = needs(model, adapter, self.capacity, compute, layout, kv, rows_of_logits(self.guesses))
        self._device = device = backend.of(compute, layout.is_fast, decoding=True)
        size = 0 if adapter is None else adapter.layout.prepared.size
        prepared = [device.arena(4 * size).take("prepared", (size,)) for _ in model.blocks] if size else []
        self.arenas = scratch, held = device.arena(self.needs.scratch), device.arena(self.needs.held)
        weights = source(model, device, layout.weights, layout.vocab_tile or model.head.weight.rows)
        cache = self._cache(device, blocks_of(model, adapter), folder)
        self._passes = Passes(
            model, adapter, compute, layout, device, scratch, held, weights, cache, prepared,
            lambda rows: Checkpoints(
                device, 1, rows, c.hidden_size, FLOAT, folder if layout.cache == "file" else None
            ),
        )  # fmt: skip

    def forward(self, tokens: Sequence[int], every: bool = False, check: Check = go_on) -> Float32:
        """Append `tokens` to the cache and return the last one's logits (vocab,), or all (T, vocab) if `every`.

        `check` is called before each chunk passes a layer. If it raises, the cache is as before the call, or empty if
        the model has recurrent states.
        Raises FeatherbackError if the tokens exceed the capacity, an id is outside the embedding, or the model's file
        was truncated.
        """
        out = self._append(tokens, self._passes.logits, self.model.config.vocab_size, every, check)
        return out if every else out[-1]

    def hidden(self, tokens: Sequence[int]) -> Float32:
        """Append `tokens` to the cache and return their hidden states (T, D) after the final norm.

        Raises FeatherbackError like `forward`.
        """
        return self._append(tokens, self._passes.hidden, self.model.config.hidden_size, True, go_on)

    def _append(self, tokens: Sequence[int], run: Run, width: int, every: bool, check: Check) -> Float32:
        """Append `tokens` and return the output of `run` for all of them, or for the last one: (n, width)."""
        if not tokens:
            raise FeatherbackError("No tokens to decode: `tokens` is empty.")
        check_ids(np.asarray(tokens, np.int64), self.model.embed_tokens.rows)
        length = len(self.tokens) + len(tokens)
        if length > self.capacity:
            raise FeatherbackError(
                f"The text is {length} tokens long, but the decoder's capacity is {self.capacity}. "
                "Shorten the text, or create the decoder with a larger `capacity`."
            )
        self.model.check_open()
        result = np.empty((len(tokens) if every else 1, width), np.float32)
        stretched = self.stretched(length)
        if self.tokens and stretched != self._stretched:
            tokens = [*self.tokens, *tokens]
            self.rewind(0)
        self._stretched = stretched
        try:
            with self._maps as maps, self._device.held(result, changing=True) as out:
                run(np.asarray(tokens, np.int32), len(self.tokens), length, out, check)
                maps.check()
        except BaseException:
            if self._has_states:  # they may be partly updated
                self.tokens.clear()
            raise
        self.tokens.extend(tokens)
        return result

    def stretched(self, length: int) -> list[bool]:
        """Return for each rotation whether keys of a text of `length` tokens use the frequencies of long texts."""
        return [rotary.uses_long_factors(length) for rotary in self.model.rotaries]

    def rewind(self, count: int) -> int:
        """Keep the first `count` tokens of the cache and return how many are left.

        None are left if the model has recurrent states, because these cannot be rewound.
        """
        count = 0 if self._has_states and count < len(self.tokens) else count
        self.unsure = max(0, self.unsure - (len(self.tokens) - count))
        del self.tokens[count:]
        return count

    def close(self) -> None:
        """Free the memory and close the files."""
        self._passes.close()
        del self._passes, self.arenas  # so that a reference to the decoder does not keep them alive
        self.on_close()

    def _cache(self, device: Backend, blocks: Sequence[Block], folder: Path | None) -> Cache:
        if self.layout.cache == "ram":
            return RAMCache(
                blocks,
                self.capacity,
                self.kv,
                lambda shape, kind: device.arena(aligned(shape, kind)).take("cache", shape, kind),
            )
        assert folder is not None
        return FileCache(
            blocks,
            self.capacity,
            self.kv,
            lambda nbytes: PieceFile(folder, nbytes, "the keys and values of the text so far"),
            lambda slots, rows, width: Checkpoints(device, slots, rows, width, FLOAT, folder),
        )
