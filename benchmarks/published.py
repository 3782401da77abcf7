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
