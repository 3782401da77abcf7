"""Generation: decoding with a key-value cache, sampling, streamed text."""
