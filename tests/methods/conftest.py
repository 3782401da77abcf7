"""Every case of the table of families, beside its twin in transformers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from featherback import models
from featherback.models.model import Model
from tests.support.families import TYPICAL, cases, dense, smooth
from tests.support.oracle import reference_model
from tests.support.tiny_models import write_tiny


@dataclass(frozen=True)
class Twins:
    """One set of weights, read by us and by transformers."""

    path: Path
    model: Model
    reference: PreTrainedModel


class _AllTwins(dict[str, Twins]):
    """Twins by the name of their case, each made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __missing__(self, name: str) -> Twins:
        path = write_tiny(self.folder / f"{name}.gguf", *cases()[name])
        self[name] = Twins(path, models.load(path), reference_model(path))
        return self[name]


@pytest.fixture(scope="session")
def all_twins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Twins]:
    return _AllTwins(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(params=cases())
def twins(all_twins: dict[str, Twins], request: pytest.FixtureRequest) -> Twins:
    """Each of the models in turn."""
    return all_twins[request.param]


@pytest.fixture(params=[name for name in TYPICAL if name in dense()])
def dense_twins(all_twins: dict[str, Twins], request: pytest.FixtureRequest) -> Twins:
    """Each of the typical models without experts in turn."""
    return all_twins[request.param]


@pytest.fixture(params=[name for name in TYPICAL if name in smooth()])
def smooth_twins(all_twins: dict[str, Twins], request: pytest.FixtureRequest) -> Twins:
    """Each of the typical models whose loss is smooth in turn."""
    return all_twins[request.param]


@pytest.fixture(scope="session")
def wide(all_twins: dict[str, Twins]) -> Twins:
    """The model of several MLP tiles."""
    return all_twins["wide-heads"]
