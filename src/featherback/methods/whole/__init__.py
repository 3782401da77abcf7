"""Train a model's own weights: the working copy, the gradients and the optimiser. No adapter is involved."""
