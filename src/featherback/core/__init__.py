"""Foundations that know nothing of models: files, names of options, options, registries and terminal output."""
