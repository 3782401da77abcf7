"""The result of reading one record: an example to train on, or the reason why the record cannot be used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from featherback.core.naming import argument
from featherback.errors import FeatherbackError


@dataclass(frozen=True)
class Example:
    """An example in one of three forms: messages, prompt and completion, or text. A pair is two of them."""

    where: str
    """The file and the line or row, for error messages."""
    shape: str = ""
    """Name of the record's shape."""
    messages: list[dict[str, Any]] | None = None
    """Each has "role" and "content", and may have other fields that chat templates use."""
    tools: list[dict[str, Any]] | None = None
    """Tools that the messages may call, in the form that chat templates expect."""
    prompt: str | None = None
    completion: str | None = None
    system: str | None = None
    """The system message before prompt and completion."""
    text: str | None = None
    rejected: Example | None = None
    """For a pair: the same prompt with the rejected answer. The other fields hold the chosen one. For texts to compare:
    the next text."""
    label: Any = None
    """Whether the answer is wanted, or the label of the text, as written in the data; None if the data do not say."""
    is_open: bool = False
    """Whether it is a prompt with a label, but without an answer."""
    reference: tuple[float, float] | None = None
    """Log-probabilities of chosen and rejected answer before training, if the data hold them."""
    unused: tuple[str, ...] = ()
    """Keys of the record that are not used."""
    renamed: tuple[tuple[str, str], ...] = ()
    """(key, column) for each column with another common name that was read as the key."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """The record itself, for a prompt whose answers are judged by it."""

    @property
    def sides(self) -> tuple[Example, ...]:
        """The example, and the one with the rejected answer if it is a pair; all texts to compare."""
        return (self,) if self.rejected is None else (self, *self.rejected.sides)


@dataclass(frozen=True)
class Bad:
    """A record that cannot be used."""

    where: str
    problem: str
    """One or more sentences, without the place."""

    def refused(self, first: bool) -> FeatherbackError:
        """Return the error for this record. `first`: no record before it was good, so skipping would not help."""
        advice = "" if first else f" Correct it, or add {argument('skip_bad', True)} to skip such examples."
        return FeatherbackError(f"{self.where}: {self.problem}{advice}")
