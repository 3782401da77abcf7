"""Generate text: decoding with a cache, sampling, streaming, conversations."""
