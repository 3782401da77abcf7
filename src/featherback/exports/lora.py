"""The LoRA adapter of the Python interface: `featherback.LoRA`."""

from featherback.exports.formats import SavedAdapter
from featherback.models import adapter


class LoRA(adapter.LoRA, SavedAdapter):
    __doc__ = adapter.LoRA.__doc__
