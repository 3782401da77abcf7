"""Fixtures shared by all tests."""

import gc
import os
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# Tests start Python hundreds of times, and compiling the modules takes longer than running them. Where the environment
# wants no bytecode beside the sources, it is kept in build/.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    sys.dont_write_bytecode = False
    sys.pycache_prefix = os.environ.setdefault(
        "PYTHONPYCACHEPREFIX", str(Path(__file__).parents[1] / "build" / "bytecode")
    )
# PyTorch's threads spin while they wait: on a small machine they would starve the kernels under test.
os.environ.setdefault("OMP_NUM_THREADS", "1")

_NUMBERS = count()
_OWN = os.getpid()


def _stay(event: str, _: tuple[object, ...]) -> None:
    """Fail a test that turns this process into another program, which would end pytest with status 0."""
    if event == "os.exec" and os.getpid() == _OWN:  # a fork may
        raise AssertionError("The test process would become another program: run the command in a process of its own.")


sys.addaudithook(_stay)

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def pytest_configure() -> None:
    """Messages are tested in the words of the command line; tests of Python's words have the fixture `in_python`."""
    from featherback.core import naming

    naming.use_flags()


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name long values by their length: pytest notes the running test in the environment, which Windows limits."""
    return f"{len(val)} long" if isinstance(val, (bytes, str)) and len(val) > 10_000 else None


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the cases that only `make test-all` runs, and leave out those that another combination stands for."""
    from tests.support import tiers

    left_out = tiers.mark(items)
    config.hook.pytest_deselected(items=left_out)
    gone = {id(item) for item in left_out}
    items[:] = [item for item in items if id(item) not in gone]


def pytest_collection_finish() -> None:
    """Leave the modules and items, a million objects that stay, out of every garbage collection."""
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()


@pytest.fixture(autouse=True)
def remembered_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this process remembers what it measures: not in the user's cache, and each test anew."""
    place = tmp_path_factory.getbasetemp() / "remembered" / f"{next(_NUMBERS)}"
    monkeypatch.setattr("featherback.engine.host.remembered.default_cache_folder", lambda: place)
    return place / "measured"


@pytest.fixture(autouse=True, scope="session")
def paid_once() -> Iterator[None]:
    """What is the same in hundreds of tests is paid once."""
    from tests.support import once

    with once.paid_once():
        yield


@pytest.fixture
def in_python() -> Iterator[None]:
    """Messages name options as Python does."""
    from featherback.core import naming

    with naming.as_flags(False):
        yield


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct in Q4_1: $FEATHERBACK_SMOLLM2, else from the cache, fetched at need."""
    if given := os.environ.get("FEATHERBACK_SMOLLM2"):
        return Path(given)
    if os.environ.get("FEATHERBACK_OFFLINE"):
        pytest.skip("FEATHERBACK_OFFLINE is set: no test of the real model")
    from featherback.models.hub.fetch import fetch

    return fetch("smollm2-135m")


@pytest.fixture(scope="session")
def smollm2_reference(smollm2_path: Path) -> "PreTrainedModel":
    """The same model in transformers, float32: the base for `tests.support.oracle.reference`."""
    from tests.support.oracle import reference_model

    return reference_model(smollm2_path)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, for tests that open folders whose weights are converted."""
    monkeypatch.setenv("FEATHERBACK_CACHE", str(tmp_path / "own cache"))
    return tmp_path / "own cache"


@pytest.fixture
def all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the programs that a test starts use every core, as a user's do: `make test` allows them one thread."""
    monkeypatch.delenv("FEATHERBACK_THREADS", raising=False)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without stores of models, and no others."""
    from featherback.models.hub.stores import ollama

    for name in ("HOME", "USERPROFILE"):  # the second one is Windows'
        monkeypatch.setenv(name, str(tmp_path))
    for name in ("OLLAMA_MODELS", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FEATHERBACK_CACHE", str(tmp_path / "ours"))
    monkeypatch.setattr(ollama, "_SERVICE", tmp_path / "service")
    return tmp_path
