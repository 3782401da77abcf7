"""The description of a model without its weights: the configuration, how files store it, the names of the parts."""
