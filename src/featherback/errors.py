"""The one exception a user of Featherback is meant to read."""

from collections.abc import Iterable, Sequence

_MOST_LISTED, _MOST_NEAR = 8, 3
_LEAST_LIKE, _ABOUT_AS_LIKE = 0.6, 0.1  # of two names: share of letters in common, 0 to 1
_LONGEST = 100  # characters of a name that are looked at
_SHORTEST_PART = 3  # letters of a name that is recognised in a longer one


class FeatherbackError(Exception):
    """A problem the user can act on: what is wrong, where, and what to do, in one clear sentence.

    The command line prints it and exits with status 2; anything else that escapes is a bug in Featherback.
    """


def shown(value: object) -> str:
    """A foreign value as an error cites it: its repr, cut where it is long."""
    try:
        text = repr(value)
    except RecursionError:
        text = f"a {type(value).__name__} within many others"
    return text if len(text) <= 80 else f"{text[:80]}..."


def some(texts: Sequence[str], between: str = ", ") -> str:
    """The first of these as an error lists them, and how many more there are."""
    more = len(texts) - _MOST_LISTED
    return between.join([*texts[:_MOST_LISTED], *([f"and {more} more"] if more > 0 else [])])


def near(name: object, known: Iterable[str], most: int = _MOST_NEAR) -> list[str]:
    """Those of the `known` names that somebody who wrote `name` may have meant, the most likely first.

    They begin or end with it or the reverse, or differ in a few letters; capitals, dashes and underscores do not count.
    """
    from difflib import SequenceMatcher  # rarely

    written = _folded(str(name)[:_LONGEST])
    likeness: dict[str, float] = {}
    for each in known:
        other = _folded(each)
        ratio = SequenceMatcher(None, written, other).ratio()
        likeness[each] = ratio + 1 if _is_part(written, other) else ratio
    least = max(_LEAST_LIKE, max(likeness.values(), default=0) - _ABOUT_AS_LIKE)
    found = [each for each, ratio in likeness.items() if ratio >= least]
    return sorted(found, key=lambda each: -likeness[each])[:most]


def did_you_mean(names: Sequence[str]) -> str:
    """ " Did you mean `cosine`?", to follow a sentence about a name that is near these; empty if there are none."""
    shown = [f"`{name}`" for name in names]
    return f" Did you mean {' or '.join(filter(None, (', '.join(shown[:-1]), shown[-1])))}?" if shown else ""


def expected(name: object, known: Iterable[str]) -> str:
    """The end of a message about a `name` that is none of the `known` ones: these, and the nearest of them."""
    known = list(known)
    return f"expected one of: {', '.join(known)}.{did_you_mean(near(name, known))}"


def _folded(name: str) -> str:
    return name.strip().lower().lstrip("-").replace("-", "_")


def _is_part(one: str, other: str) -> bool:
    """Whether one of two names begins or ends with the other."""
    short, long = sorted((one, other), key=len)
    return len(short) >= _SHORTEST_PART and (long.startswith(short) or long.endswith(short))
