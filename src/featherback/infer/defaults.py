"""How long and how varied answers are unless it is said: on the command line and in Python."""

GENERATED_TOKENS = 256
ANSWER_TOKENS = 512
CONTEXT = 4096  # tokens of a conversation
TEMPERATURE, TOP_P = 0.7, 0.95  # of a conversation; a single prompt gets the likeliest tokens
