"""`python -m tests.fuzz.cases`: for each line KIND SEED FIRST COUNT FOLDER, run mutations in a fork of this process.

{"case": number} is written before a case, {"case": number, "outcome": ...} after it: "accepted", "refused", or what
is wrong. A case that takes 5 s of CPU time, or never ends, ends the fork, as a crash does. At the end of a fork
{"ended": status} is written. Temporary files, and `errors`, are in FOLDER.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import traceback
from pathlib import Path

import numpy as np

from featherback.errors import FeatherbackError
from tests.fuzz.kinds import KINDS, Kind

SECONDS = 5.0
WAIT = 600  # wall-clock seconds, reached only by a case that waits forever
MEMORY = 100 * 10**6  # bytes more than the good files need


def main(name: str, seed: int, first: int, count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        kind = KINDS[name](Path(folder))
        good = {path: path.read_bytes() for path in kind.files if path.is_file()}
        sizes = {path: kind.header(content) for path, content in good.items()}
        _peak(kind, list(good))
        allowed = _peak(kind, list(good)) + MEMORY
        for case in range(first, first + count):
            _say(case=case)
            rng = np.random.default_rng([seed, case])
            path = list(good)[rng.integers(len(good))]
            path.write_bytes(kind.spoilt(rng, path, good[path], sizes[path]))
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            signal.alarm(WAIT)
            outcome = _outcome(kind, path)
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.alarm(0)
            if (peak := _high_water()) > allowed:
                outcome = f"{peak / 1e6:.0f} MB, where {allowed / 1e6:.0f} MB are allowed"
                _forget_peak()
            path.write_bytes(good[path])
            _say(case=case, outcome=outcome)


def _outcome(kind: Kind, path: Path) -> str:
    try:
        kind.use(path)
    except FeatherbackError as error:
        text = str(error)
        return "refused" if text and "\n" not in text else f"not a sentence: {text!r}"
    except BaseException as error:  # panics of libraries are not Exceptions
        return f"{type(error).__name__}: {str(error)[:200]}"
    return "accepted"


def _peak(kind: Kind, good: list[Path]) -> int:
    """Return the peak resident memory for the good files, in bytes."""
    _forget_peak()
    for path in good:
        kind.use(path)
    return _high_water()


def _forget_peak() -> None:
    with contextlib.suppress(OSError):  # not Linux: peaks are not checked there
        Path("/proc/self/clear_refs").write_text("5")


def _high_water() -> int:
    with contextlib.suppress(OSError, IndexError):
        return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024
    return 0


def _say(**message: object) -> None:
    os.write(1, (json.dumps(message) + "\n").encode())


def _in_a_fork(name: str, seed: str, first: str, count: str, folder: str) -> int:
    number = os.fork()
    if number:
        return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
    status = 1
    try:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        os.dup2(os.open(f"{folder}/errors", os.O_CREAT | os.O_WRONLY, 0o600), 2)
        main(name, int(seed), int(first), int(count))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    for line in sys.stdin:
        _say(ended=_in_a_fork(*line.split()))
