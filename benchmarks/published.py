"""What papers report, MB and seconds per step, under the names that the rows of `memory.py` have."""

from __future__ import annotations

from typing import NamedTuple


class Published(NamedTuple):
    mb: float
    seconds: float | None = None


MESP: dict[str, Published] = {
    "0.5b-256-mebp": Published(360.8, 0.68),
    "0.5b-256-mesp": Published(136.2, 0.86),
    "1.5b-256-mebp": Published(516.2, 1.66),
    "1.5b-256-mesp": Published(262.6, 2.17),
    "3b-256-mebp": Published(637.6, 3.21),
    "3b-256-mesp": Published(368.4, 4.09),
    "3b-256-mesp-h": Published(398.5, 3.85),
    "0.5b-128-mebp": Published(252.7),
    "0.5b-128-mesp": Published(110.7),
    "0.5b-512-mebp": Published(582.4),
    "0.5b-512-mesp": Published(245.8),
    "0.5b-1024-mebp": Published(1050.3),
    "0.5b-1024-mesp": Published(513.6),
    "0.5b-256-mebp-rank4": Published(355.2),
    "0.5b-256-mesp-rank4": Published(132.8),
    "0.5b-256-mebp-rank16": Published(372.4),
    "0.5b-256-mesp-rank16": Published(143.5),
    "0.5b-256-mebp-rank32": Published(395.8),
    "0.5b-256-mesp-rank32": Published(158.2),
}
"""Tables 1, 2, 3 and 5 of the MeSP paper (arXiv 2602.13069), as its README repeats them: iPhone 17 Pro, SGD."""
