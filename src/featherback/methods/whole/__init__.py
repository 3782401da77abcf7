"""Training a model's own weights: the copy that changes, their gradients, their optimiser. No adapter is involved."""
