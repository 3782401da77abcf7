"""The result of a preparation, as plain data that can be passed between processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from featherback.core.decode import Amount, Count
from featherback.core.naming import argument
from featherback.core.terminal import several
from featherback.data.source import display_name
from featherback.errors import excerpt

if TYPE_CHECKING:
    from featherback.data.example import Example
    from featherback.data.source import Long

MOST_SKIPPED, MOST_KEYS = 20, 20  # most that are listed
MOST_BEGINNING = 40  # characters

Synonym = Literal["human", "developer"]
SYNONYMS: Mapping[Synonym, str] = {"human": "user", "developer": "system"}
"""Roles in data sets, and their names in most chat templates."""
ROLES = {"system", "user", "assistant", "tool", *SYNONYMS}
"""Roles with a known meaning."""


@dataclass
class PrepareReport:
    """Counts of one preparation. Lengths are in tokens."""

    paths: list[str]
    seq_len: Count
    examples: Count = 0
    shapes: dict[str, Count] = field(default_factory=dict)
    """Examples by shape: messages, prompt, text."""
    beginning: str = ""
    """The first words of the first plain text; empty if there is none."""
    sequences: Count = 0
    tokens: Count = 0
    supervised_tokens: Count = 0
    too_long: Count = 0
    """Examples longer than seq_len that may not be cut or kept; if there are any, the data are rejected."""
    duplicates: Count = 0
    """Examples with the same tokens as an earlier one."""
    duplicates_exact: bool = True
    """Whether `duplicates` was counted; otherwise it is an estimate from a sample."""
    also_trained: Count = 0
    """For held-out data: sequences that have the same tokens as a training sequence."""
    also_trained_exact: bool = True
    """Whether `also_trained` was counted; otherwise it is an estimate from a sample."""
    empty_answers: Count = 0
    """Examples in which a trained answer is empty."""
    truncated: Count = 0
    """Examples cut because they are longer than seq_len."""
    truncated_tokens: Count = 0
    """Tokens removed by cutting."""
    dropped: Count = 0
    """Examples skipped because they have no supervised tokens, perhaps after cutting."""
    skipped: Count = 0
    """Bad records that were skipped on request."""
    first_skipped: list[str] = field(default_factory=list)
    """Place and problem of the first skipped records."""
    not_read: list[str] = field(default_factory=list)
    """Sentences about files in folders that are not read, and about messages that are not used."""
    unused_keys: list[str] = field(default_factory=list)
    """Unused keys of the data, up to MOST_KEYS."""
    renamed_columns: list[dict[str, str]] = field(default_factory=list)
    """Columns with other common names that were read as known keys: key -> column. Up to MOST_KEYS combinations."""
    spelled_control: Count = 0
    """Examples whose text contains the name of a control token, which was encoded as text."""
    other_roles: dict[str, Count] = field(default_factory=dict)
    """Number of messages by role, for roles that are not in ROLES and are not trained on. Up to MOST_KEYS roles."""
    renamed_roles: dict[Synonym, Count] = field(default_factory=dict)
    """Number of messages by role, for roles that were replaced because the chat template does not know them."""
    split: Count = 0
    """Conversations that became one example for each answer, because the chat template rewrites earlier turns."""
    written_date: str | None = None
    """The date that the chat template wrote into the data; None if it writes none."""
    longest: Count = 0
    longest_chat: Count = 0
    """The longest example other than plain text, which is split."""
    lengths: dict[str, Count] = field(default_factory=dict)
    """Histogram of the lengths before cutting: upper bound (a power of two) -> number of examples."""
    equal: Count = 0
    """Pairs skipped because both answers are the same."""
    first_equal: str | None = None
    only_label: bool | None = None
    """The label of all answers, if the objective needs both labels."""
    first_truncated: str | None = None
    first_dropped: str | None = None
    enough: Count | None = None
    """Tokens after which reading stops: the most that the run's steps can use."""
    read_to: str | None = None
    """The last example that was used, if reading stopped early; None if all data were read."""
    tokenizer_notes: tuple[str, ...] = ()
    """Notes about the tokenizer for the user."""
    seconds: Amount = 0.0
    peak_rss_mb: Amount = 0.0

    def count_length(self, length: int) -> None:
        bound = str(max(16, 1 << (length - 1).bit_length()))
        self.lengths[bound] = self.lengths.get(bound, 0) + 1
        self.longest = max(self.longest, length)

    @property
    def data(self) -> str:
        """The name of the data in messages."""
        return ", ".join(map(display_name, self.paths))

    def use(self, example: Example) -> None:
        """Record the text, unused keys, other roles, renamed columns and empty answers of an example."""
        if example.text is not None:
            self.beginning = self.beginning or _first_words(example.text)
        said = (m for m in example.messages or () if m["role"] == "assistant" and m.get("weight", 1))
        self.empty_answers += any(not m["content"].strip() and not m.get("tool_calls") for m in said) or (
            example.completion is not None and not example.completion.strip()
        )
        for message in example.messages or ():
            role = message["role"]
            if role not in ROLES and (role in self.other_roles or len(self.other_roles) < MOST_KEYS):
                self.other_roles[role] = self.other_roles.get(role, 0) + 1
        renamed = dict(example.renamed)
        if renamed and renamed not in self.renamed_columns and len(self.renamed_columns) < MOST_KEYS:
            self.renamed_columns.append(renamed)
        for key in example.unused:
            if key not in self.unused_keys and len(self.unused_keys) < MOST_KEYS:
                self.unused_keys.append(key)

    def begin(self, pieces: Iterable[str]) -> Iterator[str]:
        """Yield the pieces of a text, and record its first words if no text before it has any."""
        for piece in pieces:
            self.beginning = self.beginning or _first_words(piece)
            yield piece

    def cut(self, tokens: int) -> None:
        """Count an example that was cut by this many tokens."""
        self.truncated += 1
        self.truncated_tokens += tokens

    def length_within(self, sizes: Sequence[int], long: Long, where: str) -> int | None:
        """Return how many tokens the parts of an example may have, of which each has one of `sizes`.

        Counts it if it is cut. None if it may not be used, which is counted as well.
        """
        longest = max(sizes)
        self.longest_chat = max(self.longest_chat, longest)
        if longest <= self.seq_len or long == "keep":
            return longest
        self.first_truncated = self.first_truncated or where
        if long == "refuse":
            self.too_long += 1
            return None
        self.cut(sum(max(0, size - self.seq_len) for size in sizes))
        return self.seq_len

    def drop(self, where: str) -> None:
        """Count an example of which nothing is left to train on."""
        self.dropped += 1
        self.first_dropped = self.first_dropped or where

    @property
    def nothing_within(self) -> str:
        """The message for data in which every example is cut before its answer."""
        return (
            f"{self.data} has no supervised tokens within the first {self.seq_len} tokens of an example: every example "
            f"is longer (up to {self.longest_chat} tokens) and is cut before its answer."
        )

    def skip(self, problem: str) -> None:
        """Count a skipped record."""
        self.skipped += 1
        if len(self.first_skipped) < MOST_SKIPPED:
            self.first_skipped.append(problem)

    def notes(self) -> list[str]:
        """Return the notes for the user; empty if all is as expected."""
        notes = list(self.tokenizer_notes)
        if self.read_to is not None:
            notes.append(
                f"The data were read up to {self.read_to}, because the run's steps use at most {self.enough} tokens. "
                f"The rest is not trained on. If the file is sorted, shuffle it, or set {argument('epochs')}."
            )
        if self.truncated:
            notes.append(
                f"{self.truncated} of {self.examples} examples are longer than {self.seq_len} tokens and "
                f"were cut at the end. This removed {self.truncated_tokens} tokens (the longest example has "
                f"{self.longest_chat}{_first('; ', self.first_truncated)})."
            )
        if self.dropped:
            notes.append(
                f"{self.dropped} of {self.examples} examples have no supervised tokens and were "
                f"skipped{_first(' (', self.first_dropped, ')')}."
            )
        if self.equal:
            notes.append(
                f"{self.equal} of {self.examples} pairs have equal answers and were "
                f"skipped{_first(' (', self.first_equal, ')')}."
            )
        if self.only_label is not None:
            have, lack = ("true", "false") if self.only_label else ("false", "true")
            likely = "more" if self.only_label else "less"
            notes.append(
                f"All {self.examples} examples have the label {have}. Training only makes their answers {likely} "
                f"likely; add examples with the label {lack}."
            )
        if self.duplicates:
            about = "" if self.duplicates_exact else "About "
            copies = "is a copy of another" if self.duplicates == 1 else "are copies of others"
            notes.append(f"{about}{self.duplicates} of {self.examples} examples {copies}. Each copy counts.")
        notes += also_trained_note(self.also_trained, self.sequences, self.also_trained_exact)
        if self.empty_answers:
            notes.append(
                f"{self.empty_answers} of {self.examples} examples have an empty answer, which teaches the model to "
                "say nothing."
            )
        if self.skipped:
            were = "record cannot be used and was" if self.skipped == 1 else "records cannot be used and were"
            notes.append(f"{self.skipped} {were} skipped:")
            notes += [f"- {problem}" for problem in self.first_skipped]
            if self.skipped > len(self.first_skipped):
                notes.append(f"- and {self.skipped - len(self.first_skipped)} more")
        notes += self.not_read
        for columns in self.renamed_columns:
            read = [f"{excerpt(column)} as {key}" for key, column in columns.items()]
            others = argument("map", [f"{key}=COLUMN" for key in columns])
            notes.append(f"Reading {' and '.join(read)}. To read other columns: {others}.")
        if self.unused_keys:
            keys = ", ".join(map(excerpt, self.unused_keys))
            notes.append(f"These columns or keys are not used: {keys}.")
        if self.spelled_control:
            notes.append(
                f"{self.spelled_control} of {self.examples} examples contain the name of a control token of the model "
                "in their text. It is trained as plain text, not as that token."
            )
        for role, count in self.other_roles.items():
            have = "has" if count == 1 else "have"
            notes.append(
                f"{several(count, 'message')} {have} the role {excerpt(role)} and will not be trained on: training "
                "uses only messages of 'assistant'."
            )
        if self.split:
            are = "is" if self.split == 1 else "are"
            notes.append(
                f"{several(self.split, 'conversation')} {are} split into examples that each end with one answer, "
                "because the model's chat template writes earlier answers in another way than the last one."
            )
        if self.written_date is not None:
            notes.append(
                f"The model's chat template can write the date. In training it is always {self.written_date}; chat and "
                "serve use the current date."
            )
        for role, count in self.renamed_roles.items():
            have = "has" if count == 1 else "have"
            notes.append(
                f"{several(count, 'message')} {have} the role {role!r}, which the model's chat template does not know. "
                f"This role is read as {SYNONYMS[role]!r}."
            )
        return notes


def _first_words(text: str) -> str:
    """Return the first words of a text, up to MOST_BEGINNING characters."""
    words = text[: 2 * MOST_BEGINNING].split()
    while len(words) > 1 and len(" ".join(words)) > MOST_BEGINNING:
        words.pop()
    return " ".join(words)[:MOST_BEGINNING]


def _first(before: str, where: str | None, after: str = "") -> str:
    """Format the place of the first example, if it is known. It is not known when a finished token file is cut."""
    return "" if where is None else f"{before}first: {where}{after}"


def also_trained_note(count: int, of: int, exact: bool) -> list[str]:
    """Return the note about held-out sequences in the training data, if there are any."""
    if not count:
        return []
    about = "" if exact else "About "
    return [
        f"{about}{count} of the {of} held-out sequences are also in the training data, so the held-out loss does not "
        "measure the model on unseen text. Remove them from one of the two data sets."
    ]


def too_long(count: int, of: int, data: str, beyond: str, longest: int, change: str) -> str:
    """Return the error message for examples that are too long. `change`: a clause that says how to keep them whole."""
    return (
        f"{count} of {of} examples in {data} are longer than {beyond} (the longest has {longest}): {change}; "
        f"{argument('cut', True)} cuts them at the end."
    )
