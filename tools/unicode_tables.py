"""Write csrc/text/unicode_tables.h: what the `tokenizers` library takes for a letter, a number, a space ..., and how
it composes characters.

    python tools/unicode_tables.py > csrc/text/unicode_tables.h

The library is asked about every code point, because its regular expressions and its normalizer follow Unicode
versions of their own, and because a tokenizer must cut text as the one its model was trained with. Python's
`unicodedata` gives the pairs and the classes of combining characters; each is checked against the library.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable, Iterator

from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers import __version__ as version

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
CATEGORIES = {
    "Lu": r"\p{Lu}",
    "Ll": r"\p{Ll}",
    "Lt": r"\p{Lt}",
    "Lm": r"\p{Lm}",
    "Lo": r"\p{Lo}",
    "M": r"\p{M}",
    "Nd": r"\p{Nd}",
    "No": r"[\p{Nl}\p{No}]",
    "P": r"\p{P}",
    "S": r"\p{S}",
    "Z": r"\s",
}  # disjoint
HANGUL = range(0xAC00, 0xD7A4)  # composed by arithmetic, not by a table
HIGHEST = "\u0345"  # the one combining character of class 240, the highest

_nfc, _nfd = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str
Range = tuple[int, int, object]


def members(expression: str) -> set[int]:
    """The code points that an expression matches."""
    text = "".join(map(chr, CODE_POINTS))
    split = pre_tokenizers.Split(Regex(expression), "removed")
    left = {c for piece, _ in split.pre_tokenize_str(text) for c in map(ord, piece)}
    return set(CODE_POINTS) - left


def combining_class(c: int) -> int:
    """The canonical combining class; 0 for what decomposes or is no combining character to the library."""
    text = chr(c)
    if _nfd(text) != text:
        return 0
    known = _nfd(HIGHEST + text) != HIGHEST + text or text == HIGHEST
    found = unicodedata.combining(text)
    if known != bool(found):
        if known:
            raise SystemExit(f"U+{c:04X} combines, and this Python's Unicode is too old to say how.")
        return 0
    return found


def decompositions() -> Iterator[tuple[int, int, int, bool]]:
    """(character, first, second or 0, whether the two compose to it), one step each."""
    for c in CODE_POINTS:
        whole = _nfd(chr(c))
        if whole == chr(c) or c in HANGUL:
            continue
        parts = [int(part, 16) for part in unicodedata.decomposition(chr(c)).split()]
        if not 1 <= len(parts) <= 2 or whole != _nfd("".join(map(chr, parts))):
            raise SystemExit(f"U+{c:04X} decomposes otherwise than this Python's Unicode says.")
        composes = len(parts) == 2 and _nfc("".join(map(chr, parts))) == chr(c)
        yield c, parts[0], parts[1] if len(parts) == 2 else 0, composes


def ranges(values: Iterable[tuple[int, object]]) -> Iterator[Range]:
    """Neighbouring code points of equal value, joined; those of no value left out."""
    first = last = -1
    held: object = None
    for c, value in values:
        if value != held or c != last + 1:
            if held:
                yield first, last, held
            first, held = c, value
        last = c
    if held:
        yield first, last, held


def table(name: str, kind: str, comment: str, rows: Iterable[str]) -> None:
    """Print a table, filling the lines."""
    print(f"\n// {comment}\nconstexpr {kind} {name}[] = {{")
    line = "   "
    for row in rows:
        if len(line) + len(row) + 2 > 118:
            print(line)
            line = "   "
        line += f" {row},"
    print(f"{line}\n}};")


def main() -> None:
    sets = {name: members(expression) for name, expression in CATEGORIES.items()}
    of = {c: name for name, found in sets.items() for c in found}
    if len(of) != sum(map(len, sets.values())):
        raise SystemExit("A code point is in two classes.")
    categories = ((c, of.get(c)) for c in CODE_POINTS)
    print(f"// Written by tools/unicode_tables.py from tokenizers {version}; do not edit.")
    print("#pragma once\n#include <cstdint>\n\n// clang-format off\nnamespace fb::text {")
    names = ", ".join(f"{name} = {i}" for i, name in enumerate(CATEGORIES, 1))
    print("\n// Unicode's categories; No includes Nl, and Z is what \\s matches. 0 stands for the other characters.")
    print(f"constexpr uint8_t {names};")
    print("struct CharRange { uint32_t first, last; uint8_t value; };")
    print(
        "struct Decomposition { uint32_t whole, first, second; bool composes; };  // second: 0 if it is one character"
    )
    table(
        "kCategories",
        "CharRange",
        "The categories of characters.",
        (f"{{{a:#x}, {b:#x}, {value}}}" for a, b, value in ranges(categories)),
    )
    combining = ((c, combining_class(c)) for c in CODE_POINTS)
    table(
        "kCombining",
        "CharRange",
        "Canonical combining classes other than 0.",
        (f"{{{a:#x}, {b:#x}, {value}}}" for a, b, value in ranges(combining)),
    )
    table(
        "kDecompositions",
        "Decomposition",
        "Canonical decompositions, one step each, and whether composing takes the step back. Hangul is not here.",
        (f"{{{c:#x}, {a:#x}, {b:#x}, {int(back)}}}" for c, a, b, back in decompositions()),
    )
    print("\n}  // namespace fb::text\n// clang-format on")


if __name__ == "__main__":
    sys.exit(main())
