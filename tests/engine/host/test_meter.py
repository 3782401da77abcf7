"""The meter, compared with allocations of known size, in a separate process because peaks belong to a process."""

import subprocess
import sys
from pathlib import Path

import pytest

from featherback.engine.host.meter import Meter

MB = 10**6
_CHILD = """
import json, mmap, sys, time
import numpy as np
from featherback.engine.host.meter import Meter
meter = Meter(); meter.start()
before = meter.footprint_mb, meter.rss_mb
if sys.argv[1] == "anonymous":
    array = np.ones(50_000_000, np.uint8)
elif sys.argv[1] == "shared":
    array = mmap.mmap(-1, 50_000_000); array.write(bytes(1) * 50_000_000)
else:
    array = np.memmap(sys.argv[2], np.uint8, "r"); array[::4096].sum()
during = meter.footprint_mb, meter.rss_mb
end = time.monotonic() + 60  # for the sampling thread, however busy the machine is
while sys.argv[1] != "file" and meter.peak_footprint_mb < during[0] - 0.5 and time.monotonic() < end:
    time.sleep(0.01)
del array
meter.stop()
print(json.dumps([before, during, (meter.footprint_mb, meter.rss_mb), (meter.peak_footprint_mb, meter.peak_rss_mb)]))
"""


def child(kind: str, path: Path | None = None) -> list[tuple[float, float]]:
    import json

    done = subprocess.run([sys.executable, "-c", _CHILD, kind, str(path)], capture_output=True, text=True, check=True)
    found: list[tuple[float, float]] = json.loads(done.stdout)
    return found


@pytest.mark.memory_figures
@pytest.mark.parametrize("kind", ["anonymous", "shared"])
def test_fifty_megabytes_are_seen(kind: str) -> None:
    before, during, after, peak = child(kind)
    for which in (0, 1):
        assert during[which] - before[which] == pytest.approx(50, abs=1)
        assert after[which] - before[which] < 2
        assert peak[which] >= during[which] - 0.5  # freed, but still in the peak


@pytest.mark.memory_figures
def test_pages_of_a_file_are_resident_but_no_footprint(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(50 * MB))
    before, during, _, peak = child("file", path)
    assert during[0] - before[0] < 1
    assert peak[0] - before[0] < 1
    assert during[1] - before[1] == pytest.approx(50, abs=2)
    assert peak[1] >= during[1] - 0.5


def test_the_meter_is_the_systems_own_account() -> None:
    values = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if rest.strip().endswith("kB"):
            values[name] = int(rest.split()[0]) * 1024 / MB
    meter = Meter()
    assert meter.footprint_mb == pytest.approx(values["RssAnon"] + values["RssShmem"] + values["VmSwap"], abs=2)
    assert meter.rss_mb == pytest.approx(values["VmRSS"], abs=2)
