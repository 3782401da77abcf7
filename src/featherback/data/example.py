"""What a record of a data set becomes, whatever file it came from: something to train on, or a reason why it is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from featherback.core.naming import argument
from featherback.errors import FeatherbackError


@dataclass(frozen=True)
class Example:
    """A record as one of three: messages, prompt and completion, or text."""

    where: str
    """File and place in it, for complaints."""
    shape: str = ""
    """Name of the shape that the record has."""
    messages: list[dict[str, Any]] | None = None
    """Each with "role" and "content", perhaps with what else a chat template takes."""
    tools: list[dict[str, Any]] | None = None
    """Those that the messages may call, as a chat template takes them."""
    prompt: str | None = None
    completion: str | None = None
    system: str | None = None
    """What stands before prompt and completion."""
    text: str | None = None
    unused: tuple[str, ...] = ()
    """Keys of the record that nothing is made of."""
    renamed: tuple[tuple[str, str], ...] = ()
    """Keys, and the columns of other names that were read as them without a word of the user's."""


@dataclass(frozen=True)
class Bad:
    """A record that cannot be used."""

    where: str
    problem: str
    """A sentence without its place."""

    def refused(self, first: bool) -> FeatherbackError:
        """What data end with where it is not left out; `first`: nothing before it was good, so all may be like it."""
        advice = "" if first else f" {argument('skip_bad', True)} leaves such examples out."
        return FeatherbackError(f"{self.where}: {self.problem}{advice}")
