"""Some of the layouts of a decoder, for tests that need not meet all of them."""

from __future__ import annotations

from dataclasses import asdict

from featherback.infer.layout import Layout, layouts
from featherback.methods.memory.plan import Storage
from tests.support.tiers import covering


def some_layouts(cache: Storage | None = None) -> list[Layout]:
    """Return layouts in which every value of each field occurs. `cache`: only those with the key cache there."""
    every = [*layouts(), *layouts("streamed"), Layout("streamed", "file", 8)]
    every = [layout for layout in every if cache in (None, layout.cache)]
    return [every[index] for index in covering([tuple(asdict(layout).items()) for layout in every], 1)]
