"""What the papers report, MB and seconds per step. Batch 1, rank 8 and sequence 256 unless the key says otherwise.

MeSP: arXiv 2602.13069, iPhone 17 Pro GPU, `phys_footprint`, SGD; MeBP is the same paper's measurement of it.
"""

from __future__ import annotations

from typing import NamedTuple


class Published(NamedTuple):
    """MeBP's and MeSP's memory, and their times where given."""

    mebp_mb: float
    mesp_mb: float
    mebp_seconds: float | None = None
    mesp_seconds: float | None = None


MODELS = {
    "qwen2.5-0.5b": Published(360.8, 136.2, 0.68, 0.86),
    "qwen2.5-1.5b": Published(516.2, 262.6, 1.66, 2.17),
    "qwen2.5-3b": Published(637.6, 368.4, 3.21, 4.09),
}
SEQUENCES = {
    128: Published(252.7, 110.7),
    256: Published(360.8, 136.2),
    512: Published(582.4, 245.8),
    1024: Published(1050.3, 513.6),
}
RANKS = {
    4: Published(355.2, 132.8),
    8: Published(360.8, 136.2),
    16: Published(372.4, 143.5),
    32: Published(395.8, 158.2),
}
KEEP_H = {True: (398.5, 3.85), False: (368.4, 4.09)}
"""Table 5, on the 3B model: MB and seconds with h stored, and recomputed."""

GOALS = {
    ("qwen2.5-0.5b", 256): (48, 80),
    ("qwen2.5-0.5b", 1024): (80, 128),
    ("qwen2.5-0.5b", 4096): (224, 288),
    ("qwen2.5-1.5b", 256): (60, 112),
    ("qwen2.5-3b", 256): (72, 144),
    ("qwen2.5-7b", 256): (128, 256),
}
"""This project's own goals, MB of footprint and of RSS, by model and sequence."""
