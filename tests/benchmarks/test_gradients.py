"""Gradients of all methods on the real model, and the picture of how close they are."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks import gradients
from benchmarks.gradients import Closeness
from benchmarks.pictures import Panel, layers_figure, svg
from benchmarks.place import Place


def test_closeness() -> None:
    exact = np.array([3, -4, 0.5], np.float32)
    same = Closeness.of(exact, exact)
    assert (same.cosine, same.signs, same.error) == (pytest.approx(1), 1, 0)
    opposite = Closeness.of(-2 * exact, exact)
    assert (opposite.cosine, opposite.signs, opposite.error) == (pytest.approx(-1), 0, pytest.approx(3))


@pytest.mark.full("eight passes of the real model")
def test_on_the_real_model(smollm2_path: Path) -> None:
    found = {key: row() for key, row in gradients.rows(Place(Path(), print, str(smollm2_path), tiny=True)).items()}
    assert list(found) == ["mebp-fp32", "mesp-bf16", "mebp-bf16", "lcsb-fp32", "mezo-1"]
    overall = {key: (row["cosine"], row["signs"], row["error"]) for key, row in found.items()}
    assert overall["mebp-fp32"] == (pytest.approx(1), 1, 0)
    assert overall["mesp-bf16"] == overall["mebp-bf16"]
    assert overall["mesp-bf16"][0] > 0.999
    assert 0 < overall["lcsb-fp32"][0] < 0.9, "half of the blocks have no gradient"
    assert abs(overall["mezo-1"][0]) < 0.02
    assert all(len(row["layers"]) == 30 for row in found.values())


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
