"""Generate text: decoding with a cache, sampling, streaming, conversations."""

from __future__ import annotations

GENERATED_TOKENS = 256
ANSWER_TOKENS = 512
CONTEXT = 4096  # tokens of a conversation, all turns together
TEMPERATURE, TOP_P = 0.7, 0.95  # for conversations; a single prompt is decoded greedily
GENERATE_DECODE, CHAT_DECODE = "exact", "fast"  # of a single prompt; of conversations and the server
