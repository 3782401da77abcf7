"""The pages that people read, their fenced blocks, and the commands in them.

A block's first word says what it is. `sh` and `python` are run by `test_commands.py`, in the order of the page; with
`norun: REASON` behind that word `test_named.py` looks at them. `save: NAME` makes a block a file of that name, for the
commands of its page.

`python -m tests.docs.pages` lists what is not run, and why.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

RUN = ("sh", "python")
SHOWN = ("text", "json", "jsonl", "csv", "tsv", "yaml", "{eval-rst}")
"""Other blocks: output, data, and what the site is made of."""

_FENCED = re.compile(r"^```(\S*)[ \t]*(.*)\n((?:(?!```).*\n)*)```$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """What stands between two fences."""

    page: Path
    line: int
    language: str
    about: str
    """The rest of the first line."""
    content: str

    @property
    def where(self) -> str:
        """Page and line, as an editor opens them."""
        return f"{name_of(self.page)}:{self.line}"

    @property
    def runs(self) -> bool:
        return self.language in RUN and self.reason is None

    @property
    def reason(self) -> str | None:
        """Why it is not run."""
        return self.about.removeprefix("norun:").strip() if self.about.startswith("norun:") else None

    @property
    def saved_as(self) -> str | None:
        """The file that it is."""
        return self.about.removeprefix("save:").strip() if self.about.startswith("save:") else None

    def commands(self) -> Iterator[str]:
        """The commands of a shell block: a line each, and those that it goes on in."""
        for line in self.content.replace("\\\n", " ").splitlines():
            if line.strip() and not line.lstrip().startswith("#"):
                yield line.strip()


def name_of(page: Path) -> str:
    """The page's path in the repository."""
    return page.relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    found = [Block(page, text.count("\n", 0, match.start()) + 1, *match.groups()) for match in _FENCED.finditer(text)]
    fences = len(re.findall(r"^[ \t]*```", text, re.MULTILINE))
    assert fences == 2 * len(found), f"{page}: a fence is indented, or not closed"
    return found


def spans(page: Path) -> list[str]:
    """The code within the sentences of a page."""
    prose = _FENCED.sub("", page.read_text(encoding="utf-8"))
    return [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose)]


if __name__ == "__main__":
    for page in PAGES:
        for block in blocks(page):
            if block.reason is not None:
                print(f"{block.where}: {block.reason}")
