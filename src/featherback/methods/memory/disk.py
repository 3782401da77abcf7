"""The most disk space that a run takes, in bytes, without scratch files."""

from __future__ import annotations


def of_adapter(parameters: int, states: int) -> int:
    """Return the size of three checkpoints (two saved, one being written) and two adapters (old and new).

    `parameters`, `states`: float32 values of the adapter and of its optimiser.
    """
    return 3 * (parameters + states) + 2 * parameters


def of_whole_model(weights: int, states: int) -> int:
    """Return the size of three copies with optimiser states: the working copy, the saved one, one being written."""
    return 3 * (weights + states)
