"""Every kind of file that Featherback reads: a good example, a way to damage it and a way to use it.

A kind is a class under `@kind`; the suite and `make fuzz` find it here.
"""

from tests.fuzz.kinds import adapters, models, records, requests
from tests.fuzz.kinds.base import KINDS, Kind

__all__ = ["KINDS", "Kind", "adapters", "models", "records", "requests"]
