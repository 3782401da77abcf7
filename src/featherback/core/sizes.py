"""Amounts of memory and of disk: bytes, as integers. Only what a person reads or writes is in megabytes."""

from __future__ import annotations

MB = 10**6


def whole_megabytes(nbytes: float) -> int:
    """Bytes, rounded up to whole megabytes."""
    return -int(-nbytes // MB) * MB


def shown_mb(nbytes: float, digits: int = 0) -> str:
    """Bytes as a person reads them: "64 MB"."""
    return f"{nbytes / MB:.{digits}f} MB"
