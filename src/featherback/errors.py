"""The one exception a user of Featherback is meant to read."""


class FeatherbackError(Exception):
    """A problem the user can act on: what is wrong, where, and what to do, in one clear sentence.

    The command line prints it and exits with status 2; anything else that escapes is a bug in Featherback.
    """
