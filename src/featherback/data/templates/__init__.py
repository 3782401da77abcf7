"""Chat templates, which turn conversations into text."""

from __future__ import annotations

SECONDS = 1.0
"""CPU time for a request; long conversations get more."""
