"""Limits that the renderer and its process share."""

SECONDS = 1.0
"""CPU time for a request; long conversations get more."""
