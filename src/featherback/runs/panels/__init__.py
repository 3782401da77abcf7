"""The options of training, one module per group of the help: fields, checks, and values derived from them.

Rules that concern two groups are in runs.config, which combines all groups.
"""
