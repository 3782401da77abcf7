"""What a preparation did: plain data that crosses from its process to the one that asked."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

SYNONYMS = {"human": "user", "developer": "system"}
"""Roles that data sets use, and what most chat templates call them."""


@dataclass
class PrepareReport:
    """Counts of one preparation. Lengths are in tokens."""

    data: str
    seq_len: int
    examples: int = 0
    shapes: dict[str, int] = field(default_factory=dict)
    """Examples by shape: messages, prompt, text."""
    sequences: int = 0
    tokens: int = 0
    supervised_tokens: int = 0
    truncated: int = 0
    """Examples cut because they are longer than seq_len."""
    truncated_tokens: int = 0
    """Tokens cut off them."""
    dropped: int = 0
    """Examples of which no supervised token was left."""
    spelled_control: int = 0
    """Examples whose text spells a control token; it was encoded as text."""
    renamed_roles: dict[str, int] = field(default_factory=dict)
    """Messages by a role that the chat template does not know, read as its other name."""
    longest: int = 0
    lengths: dict[str, int] = field(default_factory=dict)
    """Number of examples by length before cutting: upper bound (a power of two) -> count."""
    first_truncated: str | None = None
    first_dropped: str | None = None
    enough: int | None = None
    """Tokens after which reading ends: the most that the run's steps can take."""
    read_to: str | None = None
    """Where reading ended because that was enough: the last example that was used. None: all was read."""
    tokenizer_note: str | None = None
    """What the user should know of the tokenizer."""
    seconds: float = 0.0
    peak_rss_mb: float = 0.0

    def count_length(self, length: int) -> None:
        bound = str(max(16, 1 << (length - 1).bit_length()))
        self.lengths[bound] = self.lengths.get(bound, 0) + 1
        self.longest = max(self.longest, length)

    def notes(self) -> list[str]:
        """What the user should know, a sentence each; empty if all is as expected."""
        notes = [] if self.tokenizer_note is None else [self.tokenizer_note]
        if self.read_to is not None:
            notes.append(
                f"It was read up to {self.read_to}: the steps take at most {self.enough} tokens. What stands "
                "behind that is not trained on; if the file is sorted, shuffle it, or name --epochs."
            )
        if self.truncated:
            notes.append(
                f"{self.truncated} of {self.examples} examples are longer than {self.seq_len} tokens and "
                f"were cut; {self.truncated_tokens} tokens are left out (the longest example has "
                f"{self.longest}; first: {self.first_truncated})."
            )
        if self.dropped:
            notes.append(
                f"{self.dropped} of {self.examples} examples have no supervised token left and were left "
                f"out (first: {self.first_dropped})."
            )
        if self.spelled_control:
            notes.append(
                f"{self.spelled_control} of {self.examples} examples spell a control token of the model in "
                "their text; it is trained as ordinary text, not as that token."
            )
        for role, count in self.renamed_roles.items():
            notes.append(
                f"{count} messages have the role {role!r}, which the model's chat template does not know; they "
                f"are read as {SYNONYMS[role]!r}."
            )
        return notes

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> PrepareReport:
        return cls(**content)
