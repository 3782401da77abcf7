"""Find out how a table is written: its separator, and whether quotation marks enclose fields.

The rule: of comma, semicolon, tab and vertical bar, the separator is the one that divides most of the first lines into
as many fields (at least two) as the line of column names. If several are equal, the one of the file's ending is used. A
first line `sep=;` decides. Lines without a separator above the column names, followed by an empty line, are titles.
Quotation marks enclose fields, as spreadsheets write them. With tabs they are letters, unless every field that contains
one is enclosed, or lines only have the same number of fields if marks enclose them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from featherback.data.containers.table import LONGEST_TITLE, MOST_TITLES
from featherback.data.source import SEPARATOR_NAMES
from featherback.errors import excerpt

SAMPLE = 1 << 16  # bytes that are looked at
_MOST = 200  # records
_MOSTLY = 0.5  # share of the records below a title that must have as many fields as the column names
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_SEP_LINE = re.compile(r"sep=(.)\r?\n")
_TITLES = re.compile(rf"((?:[^\n]{{0,{LONGEST_TITLE}}}\S[^\S\n]*\n){{1,{MOST_TITLES}}})(?:[^\S\n]*\n)+")
_ENCLOSED = re.compile(r'"(?:[^"]|"")*"')


@dataclass(frozen=True)
class Dialect:
    """How a table is written."""

    separator: str
    quotes: bool
    """Whether quotation marks enclose fields; otherwise they are letters."""
    skip: int = 0
    """Lines before the column names."""
    titles: int = 0
    """How many of these lines hold a title."""

    def __str__(self) -> str:
        letters = "" if self.quotes else ", quotation marks are letters"
        return f"separated by {SEPARATORS.get(self.separator, excerpt(self.separator))}{letters}"


def dialect_of(sample: str, is_whole: bool, usual: str, asked: Mapping[str, str]) -> Dialect:
    """Return the dialect of a table that begins with `sample`.

    `is_whole`: the sample is the whole file. `usual`: the separator of the file's ending. `asked`: what the user said.
    """
    skip = 0
    if stated := _SEP_LINE.match(sample):
        sample, skip, usual = sample[stated.end() :], 1, stated[1]
    if not is_whole:
        sample = sample[: sample.rfind("\n") + 1] or sample
    given = SEPARATOR_NAMES.get(asked.get("separator", ""), asked.get("separator"))
    separator, titles = given or (usual if stated else _separator(sample, usual)), 0
    if asked.get("header") != "no" and (above := _TITLES.match(sample)):
        below = sample[above.end() :]
        found = given or (usual if stated else _separator(below, usual))
        if found not in above[1] and _agreement(below, found) > _MOSTLY:
            separator, sample, titles = found, below, above[1].count("\n")
            skip += above[0].count("\n")
    quotes = asked.get("quotes")
    return Dialect(separator, _encloses(sample, separator) if quotes is None else quotes == "yes", skip, titles)


def _separator(sample: str, usual: str) -> str:
    """Return the separator that divides most records of a sample as it divides the first one."""
    found = {each: _agreement(sample, each) for each in (usual, *SEPARATORS)}
    best = max(found.values())
    return next((each for each, share in found.items() if share == best), usual) if best else usual


def _agreement(sample: str, separator: str) -> float:
    """Return the share of the records that have as many fields as the first one; 0 if that is one field."""
    ways = [_enclosed_counts(sample, separator)]
    if separator == "\t":
        ways.append([line.count("\t") + 1 for line in islice(filter(str.strip, sample.splitlines()), _MOST)])
    shares = [0.0]
    for counts in ways:
        if counts and counts[0] > 1:
            shares.append(sum(each == counts[0] for each in counts) / len(counts))
    return max(shares)


def _enclosed_counts(sample: str, separator: str) -> list[int]:
    """Return the number of fields of each record; 0 for one with a quotation mark at a wrong place."""
    at, counts, fields, wrong = 0, list[int](), 1, False
    field = re.compile(rf'("(?:[^"]|"")*"|[^"{re.escape(separator)}\n]*)({re.escape(separator)}|\r?\n|\Z)')
    while at < len(sample) and len(counts) < _MOST:
        match = field.match(sample, at)
        if match is None:  # go on after the mark
            wrong, at = True, _after(sample, at, separator)
            fields += sample[at - 1] == separator
            ends = sample[at - 1] == "\n" or at >= len(sample)
        else:
            at = match.end()
            fields += match[2] == separator
            ends = match[2] != separator
        if ends:
            if fields > 1 or sample[:at].rsplit("\n", 2)[-2 if sample[at - 1] == "\n" else -1].strip():
                counts.append(0 if wrong else fields)
            fields, wrong = 1, False
    return counts


def _after(sample: str, at: int, separator: str) -> int:
    """Return the position after the next separator or line break."""
    ends = [place for place in (sample.find(separator, at), sample.find("\n", at)) if place >= 0]
    return min(ends) + 1 if ends else len(sample)


def _encloses(sample: str, separator: str) -> bool:
    """Whether quotation marks enclose fields."""
    if separator != "\t" or '"' not in sample:
        return True
    lines = [line for line in sample.splitlines() if line.strip()]
    marked = [field for line in lines for field in line.split("\t") if '"' in field]
    if all(_ENCLOSED.fullmatch(field) for field in marked):
        return True
    counts = [line.count("\t") for line in lines[:_MOST]]
    inside = _enclosed_counts(sample, separator)
    return len(set(counts)) > 1 and len(set(inside)) == 1 and inside[0] > 0
