"""Get models into the cache: `featherback.hub.fetch.fetch`."""
