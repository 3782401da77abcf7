"""What describes a model before there is one: its configuration, how files state it, and what its parts are called."""
