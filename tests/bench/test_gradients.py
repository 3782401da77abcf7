"""`bench gradients` on the real model, and its plot."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from featherback.bench import gradients
from featherback.bench.gradients import Closeness
from featherback.bench.layer_plot import layer_svg


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
    root = ElementTree.fromstring(layer_svg({"a < b": [0.5, 1.0, -0.2], "c": [1, 1, 1]}, "Title & more"))
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [3, 3]
