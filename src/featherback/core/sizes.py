"""Amounts of memory and disk are integers in bytes. Only text that people read or write uses megabytes."""

from __future__ import annotations

MB = 10**6


def whole_megabytes(nbytes: float) -> int:
    """Round bytes up to a whole number of megabytes. The result is in bytes."""
    return -int(-nbytes // MB) * MB


def shown_mb(nbytes: float, digits: int = 0) -> str:
    """Format bytes for a person: "64 MB"."""
    return f"{nbytes / MB:.{digits}f} MB"
