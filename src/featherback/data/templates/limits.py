"""What a rendering may take; of the renderer's and of the process that renders."""

SECONDS = 1.0
"""Of processor time, and more for long conversations."""
