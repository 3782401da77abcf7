"""The loss curve as characters and as a picture."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from featherback.training.curve import loss_svg, smooth, sparkline


def test_sparkline_spans_all_levels_and_fits() -> None:
    line = sparkline([float(x) for x in range(100)], 20)
    assert len(line) == 20
    assert line[0] == "▁"
    assert line[-1] == "█"
    assert list(line) == sorted(line)
    assert sparkline([2.0, 2.0], 20) == "▁▁"
    assert sparkline([], 20) == ""


def test_smoothing_keeps_a_constant_and_its_start() -> None:
    assert smooth([3.0] * 5) == pytest.approx([3.0] * 5)
    assert smooth([4.0, 2.0])[0] == pytest.approx(4.0)


@pytest.mark.parametrize("losses", [[], [2.5], [2.5, 2.5], [5e-4, 3e-4], [3.0, 2.0, 1000.0], [-1.0, 1.0]])
def test_svg_is_well_formed_and_stays_inside(losses: list[float]) -> None:
    steps = [(float(i + 1), loss) for i, loss in enumerate(losses)]
    picture = loss_svg(steps, steps[:1], title="a < b & c")
    root = ElementTree.fromstring(picture)
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    for line in root.iter("{http://www.w3.org/2000/svg}polyline"):
        for point in line.attrib["points"].split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= width
            assert 0 <= y <= height
