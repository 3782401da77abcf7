"""A text classifier with the interface of scikit-learn, which must be installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback import api
from featherback.core.files import write_bytes
from featherback.errors import FeatherbackError, excerpt
from featherback.exports import formats
from featherback.model import Model

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted
except ImportError:
    raise FeatherbackError("FeatherbackClassifier needs scikit-learn: pip install scikit-learn") from None


class FeatherbackClassifier(ClassifierMixin, BaseEstimator):
    """Classify texts with a model and an adapter: `train(objective="classify")` as an estimator of scikit-learn.

    `model`: a path or a name, as for `featherback.load`. `epochs`, `lr`, `rank`, `memory`: as for `featherback.train`;
    None: its defaults. `random_state`: the seed. `out`: a new directory for the run; None: the run is not kept.
    `options`: further options of `featherback.train`, such as {"targets": "q,v", "eval_share": 0}.

    After `fit`, `classes_` has the labels and `adapter_` the adapter. A fitted classifier can be pickled: it contains
    its adapter, and refers to the model.
    """

    def __init__(
        self,
        model: str = "smollm2-135m",
        *,
        epochs: float | None = None,
        lr: float | None = None,
        rank: int | None = None,
        memory: str | int | None = None,
        random_state: Any = 0,
        out: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.epochs = epochs
        self.lr = lr
        self.rank = rank
        self.memory = memory
        self.random_state = random_state
        self.out = out
        self.options = options

    def fit(self, X: Sequence[str], y: Sequence[Any]) -> FeatherbackClassifier:
        """Train on texts `X` and their labels `y`. Raises FeatherbackError for data that cannot be used."""
        texts, given = _texts(X), np.asarray(y)
        if given.shape != (len(texts),):
            raise FeatherbackError(
                f"X has {len(texts)} texts, and y has the shape {given.shape}; give one label a text."
            )
        classes, numbers = np.unique(given, return_inverse=True)
        names = [str(label).strip() for label in classes]
        if len(set(names)) < 2 or len(set(names)) < len(names) or not all(names):
            raise FeatherbackError(
                f"The labels are {excerpt(names)}; there must be at least two, with different names."
            )
        records = [{"text": text, "label": names[number]} for text, number in zip(texts, numbers, strict=True)]
        chosen = {"epochs": self.epochs, "lr": self.lr, "rank": self.rank}
        options = {name: value for name, value in chosen.items() if value is not None} | dict(self.options or {})
        seed = self.random_state
        if not isinstance(seed, (int, np.integer)):
            seed = check_random_state(seed).randint(2**31 - 1)
        with TemporaryDirectory() as folder:
            run = api.train(
                self._opened(),
                records,
                self.out or str(Path(folder) / "run"),
                objective="classify",
                labels=names,
                seed=int(seed),
                memory=self.memory,
                progress=False,
                **options,
            )
            place = run.adapter.save(Path(folder) / "adapter")
            self._files = {path.name: path.read_bytes() for path in place.iterdir()}
        self._loaded: tuple[Model, formats.SavedAdapter] | None = None
        self.classes_ = classes
        return self

    def predict(self, X: Sequence[str]) -> NDArray[Any]:
        """Return the most likely label of each text, shape (n,)."""
        best = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_)[best]

    def predict_proba(self, X: Sequence[str]) -> NDArray[np.float64]:
        """Return the probability of each label in `classes_`, for each text: shape (n, labels)."""
        check_is_fitted(self, "classes_")
        model, adapter = self._load()
        found = model.classify(_texts(X), adapter=adapter, memory=self.memory)
        return np.array([list((each.probabilities or {}).values()) for each in found])

    @property
    def adapter_(self) -> formats.SavedAdapter:
        """The adapter, on the model."""
        check_is_fitted(self, "classes_")
        return self._load()[1]

    def _load(self) -> tuple[Model, formats.SavedAdapter]:
        """Return the opened model and the adapter; they are opened once."""
        if self._loaded is None:
            model = self._opened()
            with TemporaryDirectory() as folder:
                for name, content in self._files.items():
                    write_bytes(Path(folder) / name, content)
                self._loaded = model, formats.load(model, folder)
        return self._loaded

    def _opened(self) -> Model:
        return api.load(self.model, (self.options or {}).get("quantize", "none"))

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {name: None if name == "_loaded" else value for name, value in state.items()}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        tags.no_validation = True
        return tags


def _texts(given: Any) -> list[str]:
    """Return a list or column of texts as a list. Raises FeatherbackError for anything else."""
    texts = [str(each) if isinstance(each, np.str_) else each for each in given] if not isinstance(given, str) else []
    wrong = next((each for each in texts if not isinstance(each, str)), None)
    if wrong is not None or not texts:
        shown = given if not texts else wrong
        raise FeatherbackError(f"X must be a list or a column of texts; it has {excerpt(shown)}.")
    return texts
