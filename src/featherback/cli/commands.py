"""The commands: each is a function in a module of the same name, with an underscore for a dash."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from featherback.core.options import as_word

COMMANDS = (
    "demo", "fetch", "models", "plan", "train", "convert-config", "report", "evaluate", "compare", "generate", "chat",
    "serve", "classify", "embed", "export", "record", "federate", "inspect", "studio",
)  # fmt: skip
"""In the order of the help."""


def command_of(name: str) -> Callable[..., int | None]:
    """Return the function of a command."""
    found: Callable[..., int | None] = getattr(import_module(f"featherback.cli.{as_word(name)}"), as_word(name))
    return found
