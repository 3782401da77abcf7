"""Training runs: options, stages, run directory, training loop, checkpoints, resuming.

`stages` lists the steps of `featherback train` in order. `trainer` contains the loop. This module imports nothing,
because the training process, which starts from `featherback.worker`, must stay small.
"""
