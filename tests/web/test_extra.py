"""Without the extra, a sentence says what to install."""

from __future__ import annotations

import pytest

from featherback import web
from featherback.errors import FeatherbackError


def test_the_extra_is_installed_here() -> None:
    web.check_extra("serve")


def test_a_missing_package_is_named_with_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "find_spec", lambda name: None)
    with pytest.raises(
        FeatherbackError, match=r"`featherback serve` needs starlette and uvicorn.*pip install 'featherback\[serve\]'"
    ):
        web.check_extra("serve")
