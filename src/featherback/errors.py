"""The exception for problems that the user can fix, and helpers to write its messages."""

from collections.abc import Iterable, Sequence
from itertools import islice

_MOST_LISTED, _MOST_NEAR = 8, 3
_LEAST_LIKE, _ABOUT_AS_LIKE = 0.6, 0.1  # similarity of two names, 0 to 1, as SequenceMatcher.ratio() gives it
_LONGEST = 100  # characters of a name that are compared
_MOST_COMPARED = 1000  # names; each takes a tenth of a millisecond
_SHORTEST_PART = 3  # letters that a name must have to be recognised inside a longer one


class FeatherbackError(Exception):
    """A problem that the user can fix. The message says what is wrong, where, and what to do.

    The command line prints the message and exits with status 2. Any other exception that reaches the user is a bug in
    Featherback.
    """


def excerpt(value: object) -> str:
    """Return the repr of a user's value for an error message, cut after 80 characters."""
    try:
        text = repr(value)
    except RecursionError:
        text = f"a {type(value).__name__} that is nested too deeply to show"
    return text if len(text) <= 80 else f"{text[:80]}..."


def first_few(texts: Sequence[str], between: str = ", ") -> str:
    """Join the first 8 texts for an error message and add how many more there are."""
    more = len(texts) - _MOST_LISTED
    return between.join([*texts[:_MOST_LISTED], *([f"and {more} more"] if more > 0 else [])])


def near(name: object, known: Iterable[str], most: int = _MOST_NEAR) -> list[str]:
    """Return the `known` names that a user who typed `name` may have meant, the most likely first, at most `most`.

    A name is similar if one of the two begins or ends with the other, or if they differ in a few letters. Upper and
    lower case are equal, and so are dashes and underscores.
    """
    from difflib import SequenceMatcher  # rarely

    written = _folded(str(name)[:_LONGEST])
    likeness: dict[str, float] = {}
    for each in islice(known, _MOST_COMPARED):
        other = _folded(each)
        ratio = SequenceMatcher(None, written, other).ratio()
        likeness[each] = ratio + 1 if _is_part(written, other) else ratio
    least = max(_LEAST_LIKE, max(likeness.values(), default=0) - _ABOUT_AS_LIKE)
    found = [each for each, ratio in likeness.items() if ratio >= least]
    return sorted(found, key=lambda each: -likeness[each])[:most]


def did_you_mean(names: Sequence[str]) -> str:
    """Return " Did you mean `cosine`?" to append to a message; empty if there are no `names`."""
    shown = [f"`{name}`" for name in names]
    return f" Did you mean {' or '.join(filter(None, (', '.join(shown[:-1]), shown[-1])))}?" if shown else ""


def expected(name: object, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown `name`: the list of `known` names, and the most similar ones."""
    known = list(known)
    return f"expected one of: {', '.join(known)}.{did_you_mean(near(name, known))}"


def _folded(name: str) -> str:
    return name.strip().lower().lstrip("-").replace("-", "_")


def _is_part(one: str, other: str) -> bool:
    """Return whether one of two names begins or ends with the other."""
    short, long = sorted((one, other), key=len)
    return len(short) >= _SHORTEST_PART and (long.startswith(short) or long.endswith(short))
