"""From text to batches. Imports nothing here: training needs `batch`, `packing` and `token_file` (NumPy
only); `tokenizer`, `chat`, `readers` and `prepare` belong to the short-lived preparation process."""
