"""Turn data files into batches of tokens.

This module imports nothing. Training needs `batch`, `packing`, `prefixes` and `token_file`, which use NumPy only.
`containers`, `shapes`, `templates`, `tokenizers` and `prepare` run only in the short-lived preparation process.
"""
