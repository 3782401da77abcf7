"""Update rules. Each module is one optimiser and holds its class as `RULE`. To add an optimiser, add a file."""
