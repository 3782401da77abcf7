"""What a run comes to on disk at most, in bytes, without scratch files."""

from __future__ import annotations


def of_adapter(parameters: int, states: int) -> int:
    """`states`: of its optimiser. Two checkpoints that are kept and the one being written; itself and its successor."""
    return 3 * (parameters + states) + 2 * parameters


def of_whole_model(weights: int, states: int) -> int:
    """The copy that changes, the one that is kept, and the next, each with the states of its optimiser."""
    return 3 * (weights + states)
