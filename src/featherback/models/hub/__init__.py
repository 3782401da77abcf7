"""Get models into the cache: `featherback.models.hub.fetch.fetch`."""
