"""What a browser or another program reaches over HTTP: the server of models and the studio page."""

from __future__ import annotations

from importlib.util import find_spec

from featherback.errors import FeatherbackError

_PACKAGES = ("starlette", "uvicorn", "httptools")


def check_extra(command: str) -> None:
    """Raise FeatherbackError if a package that `command` needs is not installed."""
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise FeatherbackError(
            f"`featherback {command}` needs {' and '.join(missing)}, which this Python does not have: "
            "pip install 'featherback[serve]'."
        )
