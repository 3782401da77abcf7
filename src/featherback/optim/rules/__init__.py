"""Update rules. Each module here is one optimiser and holds its class as `RULE`: adding one is adding a file."""
