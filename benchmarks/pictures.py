"""The benchmarks' pictures, drawn by matplotlib."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

import matplotlib as mpl
from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
DASHES = ("solid", "dashed", "dotted")  # so that a line that covers another lets it be seen

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Panel:
    """One quantity: label -> a value per layer. `ticks`: of a linear axis; none: a logarithmic one, with room for 0."""

    title: str
    lines: Mapping[str, Sequence[float]]
    ticks: tuple[float, ...] = ()


def layers_figure(title: str, panels: Sequence[Panel], across: str = "layer") -> Figure:
    """The panels, one under the other, with one legend: labels have the same colour in all of them.

    `across`: what the values of a line are counted by.
    """
    styles = _styles(label for panel in panels for label in panel.lines)
    figure = _figure(title, [panel.title for panel in panels])
    for panel, axes in zip(panels, figure.axes):
        for label, values in panel.lines.items():
            axes.plot(values, **styles[label])
        axes.xaxis.get_major_locator().set_params(integer=True)
        if panel.ticks:
            axes.set_yticks(panel.ticks)
        else:
            least = min((value for line in panel.lines.values() for value in line if value > 0), default=1.0)
            axes.set_yscale("symlog", linthresh=least)
    figure.axes[-1].set_xlabel(across)
    figure.legend(handles=figure.axes[0].lines, loc="outside right upper", frameon=False)
    return figure


def learning_figure(title: str, curves: Mapping[str, Points], ends: Mapping[str, tuple[float, float]]) -> Figure:
    """`curves`: label -> (seconds, loss); `ends`: label -> (MB, loss)."""
    styles = _styles(curves)
    figure = _figure(title, ["held-out loss, nats per token, over seconds of training", "and over footprint, MB"])
    learnt, ended = figure.axes
    for label, points in curves.items():
        learnt.plot(*zip(*points), **styles[label])
    for label, (size, loss) in ends.items():
        ended.plot([size], [loss], **styles[label], marker="o")
    ended.set_xlim(left=0)
    figure.legend(handles=learnt.lines, loc="outside right upper", frameon=False)
    return figure


def svg(figure: Figure) -> str:
    """A figure as SVG, equal for equal figures, its text as text."""
    out = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "featherback"}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def _figure(title: str, panels: Sequence[str]) -> Figure:
    figure = Figure(figsize=(8, 2.4 * len(panels)), layout="constrained")
    figure.suptitle(title)
    for axes, name in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels):
        axes.set_title(name, loc="left", fontsize=10)
        axes.grid(alpha=0.3)
    return figure


def _styles(labels: Iterable[str]) -> dict[str, dict[str, str]]:
    looks = zip(dict.fromkeys(labels), cycle(COLOURS), cycle(DASHES))
    return {label: {"label": label, "color": colour, "linestyle": dash} for label, colour, dash in looks}
