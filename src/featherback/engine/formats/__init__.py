"""Model files: memory-mapped readers of GGUF and safetensors, handles of stored matrices, a writer of GGUF."""
