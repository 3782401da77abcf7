"""Count the records and texts of a data source, without a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from featherback.data.example import Bad
from featherback.data.readers import check_use, data_files
from featherback.data.report import PrepareReport
from featherback.data.source import Source


@dataclass
class Contents:
    """Counts of a source's records and texts."""

    data: str
    formats: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    """Number of examples by shape; documents count as "text"."""
    characters: int = 0
    """Characters of the plain texts."""
    notes: list[str] = field(default_factory=list)
    """Notes for the user, one sentence each."""

    def to_json(self) -> dict[str, Any]:
        """Return the counts as JSON values."""
        facts: dict[str, Any] = {"data": self.data, "format": ", ".join(self.formats)}
        facts |= {"examples": sum(self.kinds.values()), "kinds": dict(self.kinds)}
        return facts | ({"characters": self.characters} if self.characters else {})


def contents(source: Source, progress: Callable[[int, int], object] = lambda *_: None) -> Contents:
    """Read a source once and count what it contains.

    `progress` is called for each piece with its size and the total size, in bytes. The first record that cannot be used
    raises FeatherbackError, unless the source skips bad records.
    """
    files = data_files(source, lambda size: progress(size, total))
    check_use(source, files)
    total = sum(file.size for file in files)
    found = Contents(source.name)
    report = PrepareReport(list(source.paths), 0)
    report.not_read += [said for file in files if (said := file.not_read)]
    for file in files:
        if (described := file.container.describe(file.data)) not in found.formats:
            found.formats.append(described)
        if file.holds_texts:
            for document in file.documents():
                found.kinds["text"] += 1
                found.characters += sum(map(len, document.pieces))
            continue
        for example in file.examples():
            if not isinstance(example, Bad):
                found.kinds[example.shape] += 1
                report.use(example)
            elif source.skip_bad:
                report.skip(f"{example.where}: {example.problem}")
            else:
                raise example.refused(first=not found.kinds)
    report.not_read += [said for file in files if (said := file.left_out)]
    found.notes = report.notes()
    return found
