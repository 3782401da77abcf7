"""Readers of binary tables, one module each. They run in a process of their own (`process`), which has limits."""


class BrokenTableError(Exception):
    """A table cannot be read. The message completes "Cannot read FILE: "."""
