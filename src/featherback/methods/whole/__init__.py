"""Training a model's own weights: where they lie, what reads their gradients, and the copy that changes."""
