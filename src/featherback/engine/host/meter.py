"""True peaks of this process's memory, sampled natively: every millisecond while kernels run, else every ten."""

from __future__ import annotations

from featherback.core.sizes import MB
from featherback.engine import kernels


class Meter:
    """`footprint` is memory that only this process can free (anonymous + shared + swapped). `rss` includes file pages.

    Both are in MB (10^6 bytes). Only one meter runs at a time. Peaks count from `start`, but the resident peak is also
    the kernel's high-water mark for the whole process.
    """

    def start(self) -> None:
        """Begin sampling. Earlier footprint peaks are forgotten."""
        kernels.meter_start()

    def stop(self) -> None:
        """Stop sampling. The peaks can still be read."""
        kernels.meter_stop()

    @property
    def footprint_mb(self) -> float:
        """The footprint now, in MB."""
        return kernels.memory_now()[0] / MB

    @property
    def rss_mb(self) -> float:
        """The resident memory now, in MB."""
        return kernels.memory_now()[1] / MB

    @property
    def peak_footprint_mb(self) -> float:
        """The peak of the footprint since `start`, in MB."""
        return kernels.meter_peak()[0] / MB

    @property
    def peak_rss_mb(self) -> float:
        """The peak of the resident memory, in MB."""
        return kernels.meter_peak()[1] / MB
