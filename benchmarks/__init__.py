"""Measurements of Featherback. `python -m benchmarks` measures the published figures; the other modules are scripts."""
