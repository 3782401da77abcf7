"""Oracles and tiny models shared by the tests."""
