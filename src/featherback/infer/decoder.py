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
from featherback.engine.host.scattered import check_ids
from featherback.errors import FeatherbackError
from featherback.infer.layout import Layout
from featherback.infer.needs import Needs, needs
from featherback.infer.passes import Cache, FileCache, Passes, RAMCache
from featherback.methods.assembly import blocks_of
from featherback.methods.memory.resources import source
from featherback.models.adapter import Adapter
from featherback.models.model import Model
from featherback.nn.block import Block
from featherback.nn.span import Span

Float32 = NDArray[np.float32]
Run = Callable[[NDArray[np.int32], Span, Array], None]
"""Runs the tokens of a span and writes their output."""


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
    ) -> None:
        """`folder`: where a cache file is created, if the layout has one."""
        self.on_close: Callable[[], object] = lambda: None  # what `close` calls last
        kernels.check_compute(compute)
        if adapter is not None and adapter.outputs:
            raise FeatherbackError(
                "The adapter ends in a head that scores texts, so it cannot write any; use `featherback classify`."
            )
        c = model.config
        self.model, self.compute, self.layout = model, compute, layout
        self.capacity = min(capacity or c.max_position_embeddings, c.max_position_embeddings)
        self.tokens: list[int] = []  # the tokens in the cache
        self._has_states = any(
            about.rows is not None for block in blocks_of(model, adapter) for about in block.remembered
        )
        self._stretched: list[bool] = []  # per rotation: whether cached keys use the long-text frequencies
        self._maps = MapWatch(model.files, model.close)
        self.needs: Needs = needs(model, adapter, self.capacity, compute, layout)
        self._device = device = backend.of(compute)
        size = 0 if adapter is None else adapter.layout.prepared.size
        prepared = [device.arena(4 * size).take("prepared", (size,)) for _ in model.blocks] if size else []
        self.arenas = scratch, held = device.arena(self.needs.scratch), device.arena(self.needs.held)
        weights = source(model, device, layout.weights, layout.vocab_tile or model.head.weight.rows)
        cache = self._cache(device, blocks_of(model, adapter), folder)
        self._passes = Passes(model, adapter, compute, layout, device, scratch, held, weights, cache, prepared)

    def forward(self, tokens: Sequence[int], every: bool = False, check: Callable[[], None] | None = None) -> Float32:
        """Append `tokens` to the cache and return the last one's logits (vocab,), or all (T, vocab) if `every`.

        `check` is called before each chunk of the prompt. If it raises, the cache keeps the chunks done so far.
        Raises FeatherbackError if the tokens exceed the capacity, an id is outside the embedding, or the model's file
        was truncated.
        """
        run, width = self._passes.logits, self.model.config.vocab_size
        parts = self._append(tokens, run if every else self._passes.last_logits, width, every, check)
        return np.concatenate(parts)[-len(tokens) :] if every else parts[-1][-1]

    def hidden(self, tokens: Sequence[int]) -> Float32:
        """Append `tokens` to the cache and return their hidden states (T, D) after the final norm.

        Raises FeatherbackError like `forward`.
        """
        parts = self._append(tokens, self._passes.hidden, self.model.config.hidden_size, every=True)
        return np.concatenate(parts)[-len(tokens) :]

    def _append(
        self, tokens: Sequence[int], run: Run, width: int, every: bool, check: Callable[[], None] | None = None
    ) -> list[Float32]:
        """Append `tokens` and return the outputs of `run` for each chunk: (T, width), or (1, width) unless `every`."""
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
        stretched = [rotary.uses_long_factors(length) for rotary in self.model.rotaries]
        if self.tokens and stretched != self._stretched:
            tokens = [*self.tokens, *tokens]
            self.rewind(0)
        self._stretched = stretched
        size = self.layout.chunk
        with self._maps as maps:
            parts = []
            for at in range(0, len(tokens), size):
                if check is not None:
                    check()
                part = tokens[at : at + size]
                out = np.empty((len(part) if every else 1, width), np.float32)
                self._pass(part, run, out, length)
                parts.append(out)
            maps.check()
        return parts

    def rewind(self, count: int) -> int:
        """Keep the first `count` tokens of the cache and return how many are left.

        None are left if the model has recurrent states, because these cannot be rewound.
        """
        count = 0 if self._has_states and count < len(self.tokens) else count
        del self.tokens[count:]
        return count

    def close(self) -> None:
        """Free the memory and close the files."""
        self._passes.close()
        del self._passes, self.arenas  # so that a reference to the decoder does not keep them alive
        self.on_close()

    def _pass(self, tokens: Sequence[int], run: Run, result: Float32, length: int) -> None:
        ids = np.asarray(tokens, np.int32)
        span = Span.following(len(self.tokens), ids.size, length)
        try:
            with self._device.held(result, changing=True) as out:
                run(ids, span, out)
        except BaseException:
            if self._has_states:  # they may be partly updated
                self.tokens.clear()
            raise
        self.tokens.extend(ids.tolist())

    def _cache(self, device: Backend, blocks: Sequence[Block], folder: Path | None) -> Cache:
        float32 = np.dtype(np.float32)
        if self.layout.cache == "ram":
            return RAMCache(
                blocks, self.capacity, lambda shape: device.arena(aligned(shape, float32)).take("cache", shape)
            )
        assert folder is not None
        return FileCache(
            blocks, self.capacity, lambda slots, rows, width: Checkpoints(device, slots, rows, width, float32, folder)
        )
