"""What only some systems do, as marks of tests."""

from __future__ import annotations

import os

import pytest

from tests.support.lacking import ACCOUNTING, WINE

NO_FILE = "No such file|[Ff]ile not found|cannot find the"
"""Matches what systems say of a file that is missing."""
cuts_short = pytest.mark.skipif(os.name == "nt", reason="Windows lets no mapped file become shorter")
keeps_names = pytest.mark.skipif(os.name == "nt", reason="Windows may keep the name of an open file that is deleted")
limits_programs = pytest.mark.skipif(WINE, reason="needs limits of programs, which wine's job objects do not enforce")
lists_processes = pytest.mark.skipif(os.name == "nt", reason="needs POSIX: /proc")
counts_memory = pytest.mark.skipif(WINE, reason=ACCOUNTING)
