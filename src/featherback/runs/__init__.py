"""Training runs: options, stages, run directory, the loop, checkpoints, resume.

`stages` lists what `featherback train` does, in order. `trainer` is the loop. This module imports nothing: the training
process starts from `featherback.worker` and must stay small.
"""
