"""Training runs: options, preparation, run directory, training loop, checkpoints, resuming.

`new_run` prepares a run and `resume` reopens one; `trainer` contains the loop. This module imports nothing, because the
process that trains must stay small.
"""
