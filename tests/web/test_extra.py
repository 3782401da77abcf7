"""Without the extra, a sentence says what to install."""

from __future__ import annotations

import pytest

from featherback.errors import FeatherbackError
from featherback.web import extra


def test_the_extra_is_installed_here() -> None:
    extra.check_extra("serve")


def test_a_missing_package_is_named_with_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extra, "find_spec", lambda name: None)
    with pytest.raises(
        FeatherbackError, match=r"`featherback serve` needs starlette and uvicorn.*pip install 'featherback\[serve\]'"
    ):
        extra.check_extra("serve")
