"""`bench gradients` on the real model, and its plot."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks import gradients
from benchmarks.gradients import Closeness
from benchmarks.pictures import Panel, layers_figure, svg


def test_closeness() -> None:
    exact = np.array([3, -4, 0.5], np.float32)
    same = Closeness.of(exact, exact)
    assert (same.cosine, same.signs, same.error) == (pytest.approx(1), 1, 0)
    opposite = Closeness.of(-2 * exact, exact)
    assert (opposite.cosine, opposite.signs, opposite.error) == (pytest.approx(-1), 0, pytest.approx(3))


def test_on_the_real_model(smollm2_path: Path) -> None:
    found = gradients.run(str(smollm2_path), True, lambda _: None)
    overall = found["overall"]
    assert overall["mebp, fp32"] == {"cosine": pytest.approx(1), "signs": 1, "error": 0}
    assert overall["mesp, bf16"] == overall["mebp, bf16"]
    assert overall["mesp, bf16"]["cosine"] > 0.999
    assert abs(overall["mezo, 1 direction"]["cosine"]) < 0.02
    assert all(len(layers) == 30 for layers in found["layers"].values())
    assert "| mezo, 1 direction |" in found["markdown"]


def test_the_plot_has_a_line_each() -> None:
    lines = {"a < b": [0.5, 1.0, -0.2], "c": [1, 1, 1]}
    errors = {"a < b": [1e-3, 0, 50.0], "c": [0, 0, 0]}
    figure = layers_figure("Title & more", [Panel("cosine", lines, (0, 0.5, 1)), Panel("error", errors)])
    upper, lower = figure.axes
    for axes, expected in ((upper, lines), (lower, errors)):
        assert {line.get_label(): list(line.get_ydata()) for line in axes.lines} == expected
    assert [line.get_color() for line in upper.lines] == [line.get_color() for line in lower.lines]
    assert list(upper.get_yticks()) == [0, 0.5, 1]
    places = lower.transData.transform([(0, 0), (0, 1e-3), (0, 50)])[:, 1]  # 0 has a place below all else
    assert places[0] < places[1] < places[2]
    texts = [text.text for text in ElementTree.fromstring(svg(figure)).iter("{http://www.w3.org/2000/svg}text")]
    assert {"Title & more", "a < b", "c", "cosine", "layer"} <= set(texts)
    assert svg(figure) == svg(figure)
