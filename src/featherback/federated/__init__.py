"""Train one adapter on many machines, as an app of Flower (https://flower.ai)."""
