"""What is trained: a table of slots, where their values lie, and who takes their gradients."""
