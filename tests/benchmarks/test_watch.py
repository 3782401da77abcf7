"""A child of known size, seen from outside."""

import sys

import pytest

from benchmarks import watch
from featherback.errors import FeatherbackError

_CHILD = "import time; data = bytearray(b'x') * 40_000_000; time.sleep(1); print(len(data))"
_PARENT = f"import subprocess, sys; print(subprocess.check_output([sys.executable, '-c', {_CHILD!r}], text=True))"


def test_peaks_of_a_process() -> None:
    outcome = watch.run([sys.executable, "-c", _CHILD])
    assert outcome.output.strip() == "40000000"
    assert outcome.seconds >= 1
    if outcome.footprint_mb is not None:
        assert 40 < outcome.footprint_mb < 80  # the data and an interpreter
        assert outcome.rss_mb is not None
        assert outcome.rss_mb > outcome.footprint_mb


def test_children_are_counted() -> None:
    alone, tree = (watch.run([sys.executable, "-c", code]) for code in (_CHILD, _PARENT))
    if alone.footprint_mb is not None and tree.footprint_mb is not None:
        assert tree.footprint_mb > alone.footprint_mb + 2


def test_what_a_tree_shares_counts_once() -> None:
    outcome = watch.run([sys.executable, "-c", _PARENT], tree=True)
    if outcome.tree_mb is not None and outcome.rss_mb is not None:
        assert 40 < outcome.tree_mb < outcome.rss_mb  # two interpreters, one code of theirs


def test_a_failure_has_the_childs_last_words() -> None:
    with pytest.raises(FeatherbackError, match="failed with status 3: no such luck"):
        watch.run([sys.executable, "-c", "import sys; print('no such luck', file=sys.stderr); sys.exit(3)"])


def test_the_machine_in_words() -> None:
    assert "cores" in watch.machine()
