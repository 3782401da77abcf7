"""LoRA adapters: make, read, write."""
