"""True peaks of this process's memory, sampled natively: every millisecond while kernels run, every ten otherwise."""

from __future__ import annotations

from featherback.core.sizes import MB
from featherback.engine import kernels


class Meter:
    """`footprint`: memory only this process can free (anonymous + shared + swapped). `rss`: resident, with file pages.

    In MB (10^6 bytes). One meter runs at a time; peaks count from `start`, but the resident peak is also the kernel's
    own high-water mark of the whole process.
    """

    def start(self) -> None:
        """Begin sampling; earlier footprint peaks are forgotten."""
        kernels.meter_start()

    def stop(self) -> None:
        """End sampling; the peaks stay readable."""
        kernels.meter_stop()

    @property
    def footprint_mb(self) -> float:
        return kernels.memory_now()[0] / MB

    @property
    def rss_mb(self) -> float:
        return kernels.memory_now()[1] / MB

    @property
    def peak_footprint_mb(self) -> float:
        return kernels.meter_peak()[0] / MB

    @property
    def peak_rss_mb(self) -> float:
        return kernels.meter_peak()[1] / MB
