"""Text generation: decoding with a cache, sampling, streamed text, conversations."""
