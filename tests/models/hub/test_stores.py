"""Models of other programs, found by name in stores that lie in a folder of the test's."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from featherback.errors import FeatherbackError
from featherback.models.hub import stores
from featherback.models.hub.locate import locate
from featherback.models.hub.stores import ollama

A, B = "a" * 64, "b" * 64


def touch(path: Path, content: bytes = b"GGUF") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def layer(digest: str = A, size: int = 4, kind: str = ollama.MODEL) -> dict[str, Any]:
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": size}


def pulled(root: Path, name: str, *layers: Any) -> Path:
    """A manifest, and where its model lies."""
    content = json.dumps({"schemaVersion": 2, "layers": layers or [layer(B, 9, "text"), layer()]})
    touch(root / "manifests" / name, content.encode())
    return touch(root / "blobs" / f"sha256-{A}")


@pytest.mark.parametrize(
    ("manifest", "names"),
    [
        ("registry.ollama.ai/library/qwen2.5/0.5b", ["qwen2.5:0.5b"]),
        ("registry.ollama.ai/library/smollm2/latest", ["smollm2:latest", "smollm2"]),
        ("registry.ollama.ai/someone/mine/v1", ["someone/mine:v1"]),
        ("hf.co/someone/A-GGUF/Q4_K_M", ["hf.co/someone/A-GGUF:Q4_K_M"]),
        ("localhost:5000/a/b/latest", ["localhost:5000/a/b:latest", "localhost:5000/a/b"]),
    ],
)
def test_ollama(home: Path, manifest: str, names: list[str]) -> None:
    blob = pulled(home / ".ollama" / "models", manifest)
    assert list(stores.names()) == [f"ollama:{names[0]}"]
    for name in names:
        assert locate(f"ollama:{name}") == blob


def test_where_ollama_keeps_models(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "registry.ollama.ai/library/m/latest"
    service = pulled(home / "service", name)
    assert locate("ollama:m") == service
    own = pulled(home / ".ollama" / "models", name)
    assert locate("ollama:m") == own
    assert list(stores.names()) == ["ollama:m:latest"]
    elsewhere = pulled(home / "elsewhere", name)
    monkeypatch.setenv("OLLAMA_MODELS", str(home / "elsewhere"))
    assert locate("ollama:m") == elsewhere


def test_blobs_of_early_versions(home: Path) -> None:
    root = home / ".ollama" / "models"
    blob = pulled(root, "registry.ollama.ai/library/m/latest")
    old = blob.rename(blob.with_name(f"sha256:{A}"))
    assert locate("ollama:m") == old


@pytest.mark.parametrize(
    ("layers", "says"),
    [
        ([layer(B, 9, "text")], r"lists 0 GGUF files; it must list exactly one"),
        ([layer(), layer(B)], r"lists 2 GGUF files"),
        ([layer(size=5)], r"has 4 bytes, but .* says 5; get it again with: ollama pull m"),
        ([layer(B)], rf"lacks the file of 'm', sha256-{B}; get it again"),
        ([layer("../" * 21 + "x")], r"which is not a SHA-256"),
        ([layer("A" * 64)], r"which is not a SHA-256"),
        ([layer("a" * 63 + "\n")], r"which is not a SHA-256"),
        ([{"mediaType": ollama.MODEL}], r"names a file by None"),
        ([{"mediaType": ollama.MODEL, "digest": ["a"], "size": {}}], r"not a SHA-256"),
        ([layer(), layer(B, 4, ollama.ADAPTER)], rf"has its own adapter, .* the base model: .*sha256-{A}"),
        (["text"], r"has no list of layers"),
    ],
)
def test_manifests_that_cannot_be_used(home: Path, layers: list[Any], says: str) -> None:
    pulled(home / ".ollama" / "models", "registry.ollama.ai/library/m/latest", *layers)
    assert list(stores.names()) == ["ollama:m:latest"]
    with pytest.raises(FeatherbackError, match=says) as refusal:
        locate("ollama:m")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"{", "not valid JSON"),
        (b"[]", "no list of layers"),
        (b'{"layers": {}}', "no list of layers"),
        (b"[" * 100_000, "nested too deeply"),
        (b" " * (ollama.MOST_MANIFEST + 1), "the limit for a file of this kind"),
        (b"\xff\xfe", "not valid JSON"),
    ],
)
def test_files_that_are_no_manifests(home: Path, content: bytes, says: str) -> None:
    touch(home / ".ollama/models/manifests/registry.ollama.ai/library/m/latest", content)
    with pytest.raises(FeatherbackError, match=says):
        locate("ollama:m")


def test_links_in_circles(home: Path) -> None:
    root = home / ".ollama" / "models"
    pulled(root, "registry.ollama.ai/library/m/latest")
    os.unlink(root / "blobs" / f"sha256-{A}")
    (root / "blobs" / f"sha256-{A}").symlink_to(f"sha256-{A}")
    (root / "manifests/registry.ollama.ai/library/m/loop").symlink_to("loop")
    (root / "manifests/registry.ollama.ai/library/again").symlink_to("..")
    (root / "manifests/round").symlink_to(".")
    with pytest.raises(FeatherbackError, match="lacks the file"):
        locate("ollama:m")
    with pytest.raises(FeatherbackError, match="There is no model"):
        locate("ollama:m:loop")
    assert "ollama:m:latest" in stores.names()


@pytest.mark.parametrize(
    "name",
    [
        "ollama:../../../../etc/passwd",
        "ollama:..",
        "ollama:m:..",
        "ollama:a/../m",
        "ollama:a/b/c/d/e",
        "ollama:",
        "lmstudio:../x",
        "lmstudio:..",
        "lmstudio:a",
        "hf:../../x",
        "hf:..",
        "hf:o/" + "n" * 249,
        "hf:",
    ],
)
def test_names_that_lead_out_of_a_store(home: Path, name: str) -> None:
    pulled(home / ".ollama" / "models", "registry.ollama.ai/library/m/latest")
    touch(home / ".lmstudio/models/a/b/m.gguf")
    touch(home / ".cache/huggingface/hub/models--a--b/snapshots/1/m.gguf")
    touch(home / "x" / "snapshots" / "1" / "m.gguf")
    with pytest.raises(FeatherbackError, match="There is no model") as refusal:
        locate(name)
    assert "similar names: " in str(refusal.value)


def test_lm_studio(home: Path) -> None:
    root, old = home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"
    one = touch(root / "someone" / "One-GGUF" / "One-Q4_K_M.gguf")
    touch(root / "someone" / "One-GGUF" / "mmproj-One-F16.gguf")
    first = touch(root / "someone/Two/two-Q8_0-00001-of-00002.gguf")
    touch(root / "someone/Two/two-Q8_0-00002-of-00002.gguf")
    other = touch(root / "someone/Two/two-Q4_0.gguf")
    folder = touch(old / "mlx" / "Three" / "model.safetensors").parent
    touch(folder / "config.json")
    touch(old / "someone" / "Empty" / "README.md")
    assert list(stores.names()) == [
        "lmstudio:someone/One-GGUF",
        "lmstudio:someone/Two/two-Q4_0.gguf",
        "lmstudio:someone/Two/two-Q8_0-00001-of-00002.gguf",
        "lmstudio:mlx/Three",
    ]
    assert locate("lmstudio:someone/One-GGUF") == one
    assert locate("lmstudio:someone/Two/two-Q4_0.gguf") == other
    assert locate("lmstudio:someone/Two/q8_0") == first
    assert locate("lmstudio:mlx/Three") == folder
    with pytest.raises(FeatherbackError, match=r"choose one as lmstudio:someone/Two/FILE. The files: two-Q4_0"):
        locate("lmstudio:someone/Two")
    with pytest.raises(FeatherbackError, match=r"'../../x' matches no GGUF file of "):
        locate("lmstudio:someone/Two/../../x")


def snapshot(root: Path, repository: str, revision: str, files: list[str], main: bool = True) -> Path:
    """As the client writes it: links to blobs."""
    folder = root / f"models--{repository.replace('/', '--')}"
    for name in files:
        blob = touch(folder / "blobs" / name.replace("/", "_"))
        place = folder / "snapshots" / revision / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(blob)
    if main:
        touch(folder / "refs" / "main", revision.encode())
    return folder / "snapshots" / revision


def test_hugging_face(home: Path) -> None:
    root = home / ".cache" / "huggingface" / "hub"
    snapshot(root, "a/one", "0ld", ["m.gguf"])
    one = snapshot(root, "a/one", "new", ["m.gguf"])
    two = snapshot(root, "a/two", "1", ["q8/m-Q8_0.gguf", "m-Q4_0.gguf"])
    folder = snapshot(root, "gpt2", "1", ["config.json", "model.safetensors"])
    snapshot(root, "a/tokenizer", "1", ["tokenizer.json"])
    ours = snapshot(home / "ours" / "hub", "b/fetched", "1", ["m.gguf"], main=False)
    assert list(stores.names()) == [
        "hf:a/one",
        "hf:a/two:m-Q4_0.gguf",
        "hf:a/two:q8/m-Q8_0.gguf",
        "hf:gpt2",
        "hf:b/fetched",
    ]
    assert locate("hf:a/one") == one / "m.gguf"
    assert locate("hf:a/two:q8_0") == two / "q8" / "m-Q8_0.gguf"
    assert locate("hf:gpt2") == folder
    assert locate("hf:b/fetched") == ours / "m.gguf"
    with pytest.raises(FeatherbackError, match="choose one as hf:a/two:FILE"):
        locate("hf:a/two")
    with pytest.raises(FeatherbackError, match="hf:a/tokenizer holds neither"):
        locate("hf:a/tokenizer")


def test_where_hugging_face_keeps_models(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value, root in (
        ("XDG_CACHE_HOME", "x", "x/huggingface/hub"),
        ("HF_HOME", "h", "h/hub"),
        ("HF_HUB_CACHE", "c", "c"),
    ):
        place = snapshot(home / root, "a/one", "1", ["m.gguf"])
        monkeypatch.setenv(variable, str(home / value))
        assert locate("hf:a/one") == place / "m.gguf"


@pytest.mark.parametrize("main", [b"../../..", b"gone", b"", b"\xff", b"1" * 5000])
def test_a_reference_that_leads_nowhere(home: Path, main: bytes) -> None:
    """The newest revision is taken."""
    root = home / ".cache" / "huggingface" / "hub"
    place = snapshot(root, "a/one", "1", ["m.gguf"])
    (root / "models--a--one/refs/main").write_bytes(main)
    assert locate("hf:a/one") == place / "m.gguf"


@pytest.mark.parametrize(
    ("wanted", "near"),
    [
        ("qwen2.5:0.5", "ollama:qwen2.5:0.5b"),
        ("QWEN2.5", "ollama:qwen2.5:0.5b"),
        ("qwen25:0.5b", "ollama:qwen2.5:0.5b"),
        ("zzz", "ollama:llama3.2:1b, ollama:qwen2.5:0.5b"),
    ],
)
def test_near_names(home: Path, wanted: str, near: str) -> None:
    for name in ("qwen2.5/0.5b", "llama3.2/1b"):
        pulled(home / ".ollama" / "models", f"registry.ollama.ai/library/{name}")
    with pytest.raises(FeatherbackError, match="in Ollama's store") as refusal:
        locate(f"ollama:{wanted}")
    assert f"similar names: {near}" in str(refusal.value)


def test_without_stores(home: Path) -> None:
    assert list(stores.names()) == []
    for prefix in stores.STORES.names:
        with pytest.raises(FeatherbackError, match="is not on this machine"):
            locate(f"{prefix}:a/b")
    (home / ".ollama" / "models").mkdir(parents=True)
    with pytest.raises(FeatherbackError, match="it holds no models"):
        locate("ollama:a")
    with pytest.raises(FeatherbackError, match="as hf:NAME, lmstudio:NAME, ollama:NAME"):
        locate("elsewhere:a")


def test_a_store_that_may_not_be_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests as root may read everything."""
    service = pulled(home / "service", "registry.ollama.ai/library/m/latest").parents[1]

    def closed(scan: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any) -> Any:
            if Path(path).is_relative_to(service):
                raise PermissionError(13, "Permission denied", str(path))
            return scan(path)

        return call

    monkeypatch.setattr(os, "scandir", closed(os.scandir))
    with pytest.raises(FeatherbackError, match=r"service cannot be read by this user"):
        locate("ollama:other")
    assert list(stores.names()) == []


def test_a_file_comes_before_a_store(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    touch(home / "ollama:m")
    assert locate("ollama:m") == Path("ollama:m")


def test_models_that_were_probably_meant(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pulled(home / ".ollama" / "models", "registry.ollama.ai/library/qwen2.5/0.5b")
    monkeypatch.chdir(home)
    touch(home / "tuned-model.gguf")
    touch(home / "folder" / "config.json")
    touch(home / "folder.txt")
    for name, meant in (
        ("smollm2", "smollm2-135m"),
        ("SmolLM-135M", "smollm2-135m"),
        ("qwen2.5:0.5b", "ollama:qwen2.5:0.5b"),
        ("qwen2.5", "ollama:qwen2.5:0.5b"),
        ("tuned-model", "tuned-model.gguf"),
        ("./tuned_modle.gguf", "tuned-model.gguf"),
        (f"{home / 'folders'}", f"{home / 'folder'}"),
    ):
        with pytest.raises(FeatherbackError, match=r"There is no model .*on this machine\. Did you mean") as refusal:
            locate(name)
        assert str(refusal.value).endswith(f"Did you mean `{meant}`?")
    with pytest.raises(FeatherbackError, match=r"lists the models on this machine\.$"):
        locate("xyzzy")


def test_a_name_on_hugging_face_leads_to_fetch(home: Path) -> None:
    for name in ("Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct-GGUF:q4_k_m.gguf"):
        with pytest.raises(FeatherbackError, match="get it from Hugging Face") as refusal:
            locate(name)
        assert str(refusal.value).endswith(f" with: featherback fetch {name}")
    with pytest.raises(FeatherbackError, match="MODEL is a GGUF file"):
        locate("models/absent.gguf")
    fetched = touch(home / "ours/hub/models--Qwen--Qwen2.5-0.5B-Instruct/snapshots/1/m.gguf")
    assert locate("Qwen/Qwen2.5-0.5B-Instruct") == fetched
