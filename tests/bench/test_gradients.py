"""`bench gradients` on the real model, and its plot."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from featherback.bench import gradients
from featherback.bench.gradients import Closeness
from featherback.bench.layer_plot import Panel, layers_svg


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


def test_the_plot_is_an_svg_with_a_line_each() -> None:
    lines = {"a < b": [0.5, 1.0, -0.2], "c": [1, 1, 1]}
    panels = [Panel("cosine", lines, (0, 0.5, 1)), Panel("error", {"a < b": [1e-3, 0, 50.0], "c": [0, 0, 0]})]
    root = ElementTree.fromstring(layers_svg("Title & more", panels))
    drawn = [line.attrib["points"].split() for line in root.iter("{http://www.w3.org/2000/svg}polyline")]
    assert [len(points) for points in drawn] == [3, 3, 3, 3, 2, 2]  # two panels, then the legend
    heights = [[float(point.split(",")[1]) for point in points] for points in drawn]
    assert heights[0][1] < heights[0][0] < heights[0][2]  # the larger, the higher
    assert heights[2][2] < heights[2][0] < heights[2][1] == heights[3][0]  # and 0 below all else
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Title & more", "a < b", "0", "10⁻³", "10²"} <= set(texts)
