"""The one exception a user of Featherback is meant to read."""


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
