"""`FeatherbackClassifier` in the hands of scikit-learn: its own checks, cross-validation, searches, pipelines."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import featherback as fb
from tests.support.tiny_chat import write_tiny_chat

pytestmark = [
    pytest.mark.full("it needs scikit-learn, which the default tests do not need"),
    pytest.mark.usefixtures("in_python"),
]
TEXTS = [f"the {word} {i}" for i in range(12) for word in ("ball", "bank")]
LABELS = ["sport", "money"] * 12
DATA_FREE = (
    "check_estimator_cloneable", "check_estimator_tags_renamed", "check_valid_tag_types", "check_estimator_repr",
    "check_no_attributes_set_in_init", "check_do_not_raise_errors_in_init_or_set_params", "check_mixin_order",
    "check_parameters_default_constructible", "check_get_params_invariance", "check_set_params",
    "check_estimator_get_tags_default_keys",
)  # fmt: skip
"""scikit-learn's checks that fit nothing to numbers. For texts, `check_estimator` skips all others."""


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Any]:
    model = write_tiny_chat(tmp_path / "model.gguf")
    options = {"eval_share": 0, "samples": 0}
    return lambda **named: fb.FeatherbackClassifier(  # type: ignore[attr-defined]
        str(model), **{"epochs": 20, "lr": 1e-2, "rank": 4, "options": options, **named}
    )


@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_own_checks(make: Callable[..., Any]) -> None:
    from sklearn.utils import estimator_checks

    estimator_checks.check_estimator(make())
    ran = [name for name in DATA_FREE if hasattr(estimator_checks, name)]
    assert len(ran) >= 9
    for name in ran:
        getattr(estimator_checks, name)("FeatherbackClassifier", make())


def test_it_learns_and_keeps_its_promises(make: Callable[..., Any], tmp_path: Path) -> None:
    from sklearn.exceptions import NotFittedError

    classifier = make()
    with pytest.raises(NotFittedError):
        classifier.predict(TEXTS)
    before = classifier.get_params()
    assert classifier.fit(TEXTS, LABELS) is classifier
    assert classifier.get_params() == before
    assert list(classifier.classes_) == ["money", "sport"]
    assert classifier.score(TEXTS, LABELS) == 1.0
    chances = classifier.predict_proba(np.array(TEXTS))
    assert chances.shape == (24, 2)
    np.testing.assert_allclose(chances.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(make().fit(TEXTS, LABELS).predict_proba(TEXTS), chances)
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(again.predict_proba(TEXTS), chances)
    assert classifier.adapter_.save(tmp_path / "kept").is_dir()
    found = fb.classify(classifier.model, TEXTS[0], adapter=tmp_path / "kept")
    assert found[0].label == "sport"


def test_labels_may_be_numbers(make: Callable[..., Any], tmp_path: Path) -> None:
    numbers = np.array([10, 9] * 12)
    classifier = make(out=str(tmp_path / "run"), random_state=None).fit(TEXTS, numbers)
    assert classifier.predict(TEXTS).dtype == numbers.dtype
    assert classifier.score(TEXTS, numbers) == 1.0
    assert fb.open_run(tmp_path / "run").status == "finished"


def test_validation_searches_and_pipelines(make: Callable[..., Any]) -> None:
    from sklearn.model_selection import GridSearchCV, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    lower = FunctionTransformer(lambda texts: [text.lower() for text in texts])
    scores = cross_val_score(make_pipeline(lower, make()), [text.upper() for text in TEXTS], LABELS, cv=2)
    assert scores.shape == (2,)
    search = GridSearchCV(make(), {"lr": [1e-9, 1e-2]}, cv=2, scoring="neg_log_loss").fit(TEXTS, LABELS)
    assert search.best_params_ == {"lr": 1e-2}


@pytest.mark.parametrize(
    ("texts", "labels", "says"),
    [
        (TEXTS, LABELS[:-1], r"24 texts, and y has the shape \(23,\)"),
        (TEXTS, ["a"] * 24, "at least two"),
        (np.zeros((24, 3)), LABELS, "a list or a column of texts"),
        ([], [], "a list or a column of texts"),
        ("text", ["a"], "a list or a column of texts"),
    ],
)
def test_data_of_nonsense(make: Callable[..., Any], texts: Any, labels: Any, says: str) -> None:
    with pytest.raises(fb.FeatherbackError, match=says):
        make().fit(texts, labels)
