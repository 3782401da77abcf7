"""Find where a text that arrives in pieces must stop, and hold back what may belong to a stop string."""

from __future__ import annotations

from collections.abc import Sequence


class Stops:
    """The stop strings of an answer. The one that is complete first counts, however the text is cut into pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None
        """The stop string that was found."""

    def push(self, piece: str) -> str:
        """Add a piece and return the text that surely comes before a stop string. Nothing after one is returned."""
        if self.found is not None:
            return ""
        text = self._held + piece
        ends = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            _, at, self.found = min(ends)
            self._held = ""
            return text[:at]
        kept = max((overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def flush(self) -> str:
        """Return the text that was held back, because the answer has ended."""
        held, self._held = self._held, ""
        return held


def overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` with which `stop` begins. `text` does not contain `stop`."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)
