"""Weights on disk: lean memory-mapped readers, quantised matrix handles, and a writer."""
