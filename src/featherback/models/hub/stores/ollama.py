"""Ollama's store: manifests/HOST/NAMESPACE/NAME/TAG is JSON that lists files in blobs/sha256-...; one is the GGUF.

A name is NAME[:TAG], NAMESPACE/NAME[:TAG] or HOST/NAMESPACE/NAME[:TAG], as `ollama list` shows it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from featherback.core.files import read_json
from featherback.errors import FeatherbackError, excerpt
from featherback.models.hub.stores.base import Store, files, is_plain, subfolders

HOST, NAMESPACE, TAG = "registry.ollama.ai", "library", "latest"  # defaults for missing parts of a name
MODEL = "application/vnd.ollama.image.model"
ADAPTER = "application/vnd.ollama.image.adapter"
MOST_MANIFEST = 1 << 20  # bytes; real manifests have about a thousand
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
_SERVICE = Path("/usr/share/ollama/.ollama/models")
"""The store of the service that Ollama's installer sets up on Linux."""


class Ollama(Store):
    title = "Ollama's store"
    get = "ollama pull NAME"

    def folders(self) -> list[Path]:
        if configured := os.environ.get("OLLAMA_MODELS"):
            return [Path(configured)]
        return [Path.home() / ".ollama" / "models", _SERVICE]

    def names(self) -> Iterator[str]:
        for folder in self.folders():
            for host in subfolders(folder / "manifests"):
                for namespace in subfolders(host):
                    for name in subfolders(namespace):
                        for tag in files(name):
                            yield _short(host.name, namespace.name, name.name, tag.name)

    def path(self, name: str) -> Path | None:
        parts = _parts(name)
        if not all(map(is_plain, parts)):
            return None
        for folder in self.folders():
            manifest = folder.joinpath("manifests", *parts)
            if os.path.isfile(manifest):
                return _model(folder, manifest, name)
        return None


def _parts(name: str) -> list[str]:
    """Split a name into host, namespace, name and tag."""
    *before, last = name.split("/")
    stem, _, tag = last.partition(":")
    return [*(HOST, NAMESPACE)[: max(0, 2 - len(before))], *before, stem, tag or TAG]


def _short(host: str, namespace: str, name: str, tag: str) -> str:
    """As little of a name as `_parts` needs."""
    before = [host, namespace] if host != HOST else [namespace] if namespace != NAMESPACE else []
    return "/".join((*before, f"{name}:{tag}"))


def _model(folder: Path, manifest: Path, name: str) -> Path:
    """Return the GGUF file of a manifest."""
    layers = _layers(manifest)
    models = [layer for layer in layers if layer.get("mediaType") == MODEL]
    if len(models) != 1:
        raise FeatherbackError(
            f"{excerpt(name)} of Ollama's store cannot be trained: its manifest {manifest} lists {len(models)} GGUF "
            f"files; it must list exactly one."
        )
    path = _blob(folder, manifest, models[0], name)
    if any(layer.get("mediaType") == ADAPTER for layer in layers):
        raise FeatherbackError(
            f"{excerpt(name)} of Ollama's store has its own adapter, which training would ignore; to train without "
            f"that adapter, name the base model: {path}."
        )
    return path


def _layers(manifest: Path) -> list[dict[str, Any]]:
    entries = read_json(manifest, MOST_MANIFEST)
    layers = entries.get("layers") if isinstance(entries, dict) else None
    if not isinstance(layers, list) or not all(isinstance(layer, dict) for layer in layers):
        raise FeatherbackError(f"{manifest} is not an Ollama manifest: it has no list of layers.")
    return layers


def _blob(folder: Path, manifest: Path, layer: dict[str, Any], name: str) -> Path:
    digest = layer.get("digest")
    match = _DIGEST.fullmatch(digest) if isinstance(digest, str) else None
    if match is None:
        raise FeatherbackError(f"{manifest} is damaged: it names a file by {excerpt(digest)}, which is not a SHA-256.")
    for mark in "-:":  # early versions wrote colons
        path = folder / "blobs" / f"sha256{mark}{match[1]}"
        if os.path.isfile(path):
            if (size := layer.get("size")) != (found := path.stat().st_size):
                raise FeatherbackError(
                    f"{path} has {found} bytes, but the manifest of {excerpt(name)} says {excerpt(size)}; get it again "
                    f"with: ollama pull {name}"
                )
            return path
    raise FeatherbackError(
        f"{folder / 'blobs'} lacks the file of {excerpt(name)}, sha256-{match[1]}; get it again with: ollama pull "
        f"{name}"
    )


STORE = Ollama()
