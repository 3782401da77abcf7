"""The one exception a user of Featherback is meant to read."""

from collections.abc import Sequence

_MOST_LISTED = 8


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
