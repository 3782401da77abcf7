"""A model's description, without its weights: its configuration, how files state it, the names of its parts."""
