"""The options of training, one module for each panel of the help: its fields, their checks and what follows from them.

A rule that concerns two panels is in runs.config, which composes them.
"""
