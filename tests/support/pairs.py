"""The adapter formats that hold LoRA: all but Featherback's own, which is for adapters that are branches."""

from featherback.exports.formats import FORMATS

PAIR_FORMATS = tuple(name for name in FORMATS.names if name != "own")
