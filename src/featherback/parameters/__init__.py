"""What is trained: a table of slots, where their values lie, and what takes their gradients."""
