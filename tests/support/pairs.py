"""The formats of adapters that hold LoRA: all that another program reads as an adapter."""

from featherback.exports import FORMATS

PAIR_FORMATS = tuple(name for name in FORMATS.names if FORMATS[name].title)
