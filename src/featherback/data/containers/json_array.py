"""A JSON array of objects, read element by element. Only one element is in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from featherback.data.containers.base import Record, Records
from featherback.data.containers.json_scanner import Position, Scanner
from featherback.data.containers.json_text import TOO_MANY
from featherback.data.example import Bad
from featherback.data.inputs import Input
from featherback.data.record_size import MOST_RECORD, MOST_VALUES, RawSize, admits_raw
from featherback.errors import FeatherbackError


class Array(Records):
    title = "JSON array"
    suffixes: ClassVar[tuple[str, ...]] = (".json", ".jsonl", ".ndjson")
    nothing = "only an empty array"
    level = 1
    """Brackets around the elements."""
    whole = "array"
    wrong_end = "text follows the end of the array. Remove it, or write one JSON object per line."
    after = ","
    """What stands between two elements."""

    def fits(self, begin: bytes) -> bool:
        return begin.startswith(b"[")

    def recognises_start(self, begin: bytes) -> bool:
        return self.fits(begin)

    def read(self, data: Input) -> Iterator[Record | Bad]:
        scanner, place = Scanner(self.level), Position(data.name)
        several = False
        for piece in data.pieces():
            for element in scanner.elements(piece):
                if not admits_raw(data.room, str(place), element):
                    place.skip(element, self.after)
                elif several and not element.strip() and not scanner.is_open:
                    yield Bad(str(place), "a comma follows the last element of the array. Remove it.")
                elif several or scanner.is_open or element.strip():  # an empty array has no element
                    yield from self.records(place.record(element, self.after), data)
                several = True
            if not rest_fits(data, scanner, place):
                return
        if scanner.is_open:
            yield Bad(str(place), f"the {self.whole} has no closing bracket; the file may be incomplete.")
        elif self.is_wrong_end(scanner.rest):
            yield Bad(str(place), self.wrong_end)

    def is_wrong_end(self, rest: bytearray) -> bool:
        """Whether what follows the elements is an error."""
        return bool(rest.strip())

    def records(self, element: Record | Bad, data: Input) -> Iterator[Record | Bad]:
        """Yield the records of an element."""
        yield element


CONTAINER = Array()


def rest_fits(data: Input, scanner: Scanner, place: object) -> bool:
    """Whether the element that was read in part, whose full length is not known, may be read to its end."""
    fits = True
    if MOST_RECORD >= len(scanner.rest) > data.room.most:
        found = RawSize.of_unknown(data.longest)
        fits = data.room.admits(str(place), found.size, found.reading, found.at_most)
    if len(scanner.rest) > MOST_RECORD:
        raise FeatherbackError(
            f"{place}: the example is longer than {MOST_RECORD >> 20} MB, or a quotation mark is missing. "
            "Split the example, or add the quotation mark."
        )
    if scanner.marks > MOST_VALUES:
        raise FeatherbackError(f"{place}: {TOO_MANY}.")
    return fits
