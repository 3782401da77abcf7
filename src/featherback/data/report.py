"""What a preparation did: plain data that crosses from its process to the one that asked."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from featherback.core.naming import argument
from featherback.core.terminal import several
from featherback.data.source import called
from featherback.errors import shown

if TYPE_CHECKING:
    from featherback.data.example import Example

MOST_SKIPPED, MOST_KEYS = 20, 20  # that are listed

SYNONYMS = {"human": "user", "developer": "system"}
"""Roles that data sets use, and what most chat templates call them."""
ROLES = {"system", "user", "assistant", "tool", *SYNONYMS}
"""Roles whose meaning is known."""


@dataclass
class PrepareReport:
    """Counts of one preparation. Lengths are in tokens."""

    paths: list[str]
    seq_len: int
    examples: int = 0
    shapes: dict[str, int] = field(default_factory=dict)
    """Examples by shape: messages, prompt, text."""
    sequences: int = 0
    tokens: int = 0
    supervised_tokens: int = 0
    too_long: int = 0
    """Examples longer than seq_len that were neither cut nor kept: the data are refused."""
    duplicates: int = 0
    """Examples with the tokens of an earlier one."""
    duplicates_exact: bool = True
    """Whether that was counted, and not estimated from a part."""
    also_trained: int = 0
    """Of held-out data: sequences that are training sequences as well, token for token."""
    also_trained_exact: bool = True
    """Whether that was counted, and not estimated from a part."""
    empty_answers: int = 0
    """Examples with an answer to be trained that says nothing."""
    truncated: int = 0
    """Examples cut because they are longer than seq_len."""
    truncated_tokens: int = 0
    """Tokens cut off them."""
    dropped: int = 0
    """Examples of which no supervised token was left."""
    skipped: int = 0
    """Records that cannot be used and were left out, as was asked for."""
    first_skipped: list[str] = field(default_factory=list)
    """The first of them: where, and what is wrong."""
    not_read: list[str] = field(default_factory=list)
    """What is passed over of folders, a sentence each."""
    unused_keys: list[str] = field(default_factory=list)
    """Keys of the data that nothing is made of; some of them, if there are very many."""
    renamed_columns: list[dict[str, str]] = field(default_factory=list)
    """Columns of usual names that were read as other keys, key -> column; some of the ways, if there are very many."""
    spelled_control: int = 0
    """Examples whose text spells a control token; it was encoded as text."""
    other_roles: dict[str, int] = field(default_factory=dict)
    """Messages by a role that is none of ROLES, and so not trained; of some roles, if there are very many."""
    renamed_roles: dict[str, int] = field(default_factory=dict)
    """Messages by a role that the chat template does not know, read as its other name."""
    longest: int = 0
    longest_chat: int = 0
    """Of the examples that are not text, and so not cut into sequences."""
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

    @property
    def data(self) -> str:
        """What messages call the data."""
        return ", ".join(map(called, self.paths))

    def use(self, example: Example) -> None:
        """Note what is not used of an example, and whether an answer in it is empty."""
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

    def cut(self, tokens: int) -> None:
        """Count an example that loses so many tokens."""
        self.truncated += 1
        self.truncated_tokens += tokens

    @property
    def nothing_within(self) -> str:
        """What is to be said if every example was cut before its answer."""
        return (
            f"{self.data} has no supervised token within {self.seq_len} tokens: every example is longer (up to "
            f"{self.longest_chat}) and is cut before its answer."
        )

    def skip(self, problem: str) -> None:
        """Count a record that is left out."""
        self.skipped += 1
        if len(self.first_skipped) < MOST_SKIPPED:
            self.first_skipped.append(problem)

    def notes(self) -> list[str]:
        """What the user should know, a sentence each; empty if all is as expected."""
        notes = [] if self.tokenizer_note is None else [self.tokenizer_note]
        if self.read_to is not None:
            notes.append(
                f"It was read up to {self.read_to}: the steps take at most {self.enough} tokens. What stands "
                f"behind that is not trained on; if the file is sorted, shuffle it, or name {argument('epochs')}."
            )
        if self.truncated:
            notes.append(
                f"{self.truncated} of {self.examples} examples are longer than {self.seq_len} tokens and "
                f"were cut; {self.truncated_tokens} tokens are left out (the longest example has "
                f"{self.longest_chat}{_first('; ', self.first_truncated)})."
            )
        if self.dropped:
            notes.append(
                f"{self.dropped} of {self.examples} examples have no supervised token left and were left "
                f"out{_first(' (', self.first_dropped, ')')}."
            )
        if self.duplicates:
            about = "" if self.duplicates_exact else "About "
            notes.append(
                f"{about}{self.duplicates} of {self.examples} examples are copies of others, and count as "
                "often as they are there."
            )
        notes += also_trained_note(self.also_trained, self.sequences, self.also_trained_exact)
        if self.empty_answers:
            notes.append(
                f"{self.empty_answers} of {self.examples} examples have an empty answer, which teaches to say nothing."
            )
        if self.skipped:
            left = "record cannot be used and was" if self.skipped == 1 else "records cannot be used and were"
            notes.append(f"{self.skipped} {left} left out:")
            notes += [f"- {problem}" for problem in self.first_skipped]
            if self.skipped > len(self.first_skipped):
                notes.append(f"- and {self.skipped - len(self.first_skipped)} more")
        notes += self.not_read
        for columns in self.renamed_columns:
            read = [f"{shown(column)} as {key}" for key, column in columns.items()]
            first, others = next(iter(columns)), " and ".join(read)
            notes.append(f"Reading {others}; {argument('map', f'{first}=COLUMN')} reads another column.")
        if self.unused_keys:
            keys = ", ".join(map(shown, self.unused_keys))
            notes.append(f"These keys of the data are not used: {keys}.")
        if self.spelled_control:
            notes.append(
                f"{self.spelled_control} of {self.examples} examples spell a control token of the model in "
                "their text; it is trained as ordinary text, not as that token."
            )
        for role, count in self.other_roles.items():
            what = "is no answer" if count == 1 else "are no answers"
            notes.append(
                f"{several(count, 'message')} of the role {shown(role)} {what}: those are the messages of 'assistant'."
            )
        for role, count in self.renamed_roles.items():
            notes.append(
                f"{several(count, 'message')} of the role {role!r}, which the model's chat template does not know, "
                f"will be read as {SYNONYMS[role]!r}."
            )
        return notes

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> PrepareReport:
        return cls(**content)


def _first(before: str, where: str | None, after: str = "") -> str:
    """Where the first is, if that is known: of tokens that are cut later it is not."""
    return "" if where is None else f"{before}first: {where}{after}"


def also_trained_note(count: int, of: int, exact: bool) -> list[str]:
    """What is to be said of held-out sequences that are trained on; nothing if there are none."""
    if not count:
        return []
    about = "" if exact else "About "
    return [
        f"{about}{count} of the {of} held-out sequences are also in the training data: the held-out loss does not show "
        "how the model does on text that it was not trained on. Remove them from one of the two."
    ]


def too_long(count: int, of: int, data: str, beyond: str, longest: int, change: str) -> str:
    """The refusal of examples that are too long and not to be cut; `change`: what takes them whole."""
    return (
        f"{count} of {of} examples in {data} are longer than {beyond} (the longest has {longest}): {change}, "
        f"{argument('cut', True)} cuts them at the end."
    )
