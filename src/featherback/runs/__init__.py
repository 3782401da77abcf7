"""Training runs: options, run directory, the loop, resume, progress. Imports nothing here: the training
process starts from `worker` and must stay small."""
