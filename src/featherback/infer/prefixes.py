"""Prefixes of texts whose keys, values and states have been computed, for requests that begin with the same tokens."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from featherback.infer.generate import common
from featherback.infer.loaded import Loaded
from featherback.infer.sequence import Running, SequenceCache

MOST = 64
"""Prefixes that are kept."""


class Source(Protocol):
    """A sequence from which others may copy: a kept one, or one that is being computed."""

    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def done(self) -> int:
        """How many of the tokens are in the cache."""

    @property
    def stretched(self) -> Sequence[bool]: ...
    @property
    def adapter(self) -> Loaded | None: ...
    @property
    def cache(self) -> SequenceCache: ...


class Kept(NamedTuple):
    """A sequence that has ended."""

    tokens: Sequence[int]
    done: int
    stretched: Sequence[bool]
    adapter: Loaded | None
    cache: SequenceCache
    nbytes: int


class Match(NamedTuple):
    """A sequence that begins with the same tokens as another one."""

    source: Source
    shared: int  # tokens that both have, and that can be copied
    ready: bool  # whether they have been computed


def best_match(wanted: Running, sources: Iterable[Source], has_states: bool) -> Match | None:
    """Return the source with the most tokens that `wanted` can copy; None if there is none.

    `has_states`: the model has recurrent states, which hold all tokens of a source and cannot be rewound.
    """
    found: Match | None = None
    for source in sources:
        if source.adapter is not wanted.adapter or list(source.stretched) != wanted.stretched:
            continue
        count = common(source.tokens, wanted.tokens[: wanted.most_copied(has_states)])
        if has_states:
            count = source.done if 0 < source.done <= count else 0
        if count and (found is None or count > found.shared):
            found = Match(source, count, count <= source.done)
    return found


class Prefixes:
    """The caches of sequences that have ended. The one that was not used for the longest time is dropped first."""

    def __init__(self, on_drop: Callable[[Kept], object] = lambda _: None) -> None:
        """`on_drop`: called with each one before it is dropped."""
        self._on_drop = on_drop
        self._kept: OrderedDict[int, Kept] = OrderedDict()
        self._count = 0

    def __iter__(self) -> Iterator[Kept]:
        return iter(list(self._kept.values()))

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        return sum(each.nbytes for each in self._kept.values())

    @property
    def file_bytes(self) -> int:
        """Bytes of their files."""
        return sum(each.cache.file_bytes for each in self._kept.values())

    def keep(self, ended: Running, nbytes: int) -> Kept:
        """Keep the cache of a sequence, which holds `nbytes`. It replaces those that are the beginning of it."""
        tokens = ended.tokens[: ended.done]
        for key, each in list(self._kept.items()):
            if each.adapter is ended.adapter and common(each.tokens, tokens) == len(each.tokens):
                self._drop(key)
        self._count += 1
        kept = Kept(tokens, ended.done, ended.stretched, ended.adapter, ended.cache, nbytes)
        self._kept[self._count] = kept
        while len(self._kept) > MOST:
            self.drop_oldest()
        return kept

    def used(self, source: Source) -> None:
        """Note that a sequence was copied from."""
        for key, each in self._kept.items():
            if each is source:
                self._kept.move_to_end(key)
                return

    def drop_oldest(self, in_file: bool = False) -> bool:
        """Drop the one that was not used for the longest time. Return whether there was one.

        `in_file`: only one whose keys and values are in a file.
        """
        keys = (key for key, each in self._kept.items() if each.cache.in_file or not in_file)
        if (oldest := next(keys, None)) is None:
            return False
        self._drop(oldest)
        return True

    def drop_adapter(self, adapter: Loaded) -> None:
        """Drop those that were computed with an adapter."""
        for key, each in list(self._kept.items()):
            if each.adapter is adapter:
                self._drop(key)

    def _drop(self, key: int) -> None:
        self._on_drop(self._kept[key])
        del self._kept[key]
