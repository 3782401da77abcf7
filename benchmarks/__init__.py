"""Measurements of Featherback. `python -m benchmarks --help` has the published tables; the others are scripts."""
