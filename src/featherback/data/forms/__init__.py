"""Forms of data: what the examples of an objective hold. Each module here is one, with its object as `FORM`."""

from __future__ import annotations

from featherback.core.registry import Registry
from featherback.data.forms.base import DataForm

FORMS: Registry[DataForm] = Registry(__name__, "FORM", "form of data", shared=("answers", "base"))
