"""A plugin of pytest for systems that lack PyTorch or POSIX: `python -m pytest -p tests.support.lacking`.

A test that needs what this system lacks is skipped with the reason, which the test itself shows: it imports a package
that is not here, or asks Python for a part of POSIX. A test fails if the product does so. The summary counts the
reasons.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TORCH = {"torch", "transformers", "peft"}
POSIX = {"fcntl", "resource", "pty", "termios", "pwd", "grp", "syslog"}
_PART = re.compile(r"module '(os|signal|socket|select|time|mmap|pwd)' has no attribute '(\w+)'")
_TESTS = str(Path(__file__).parents[1])
left_out: Counter[str] = Counter()


def pytest_configure() -> None:
    if os.environ.get("WINEPREFIX"):
        del os.getppid  # wine 8 ends a program that calls it


def reason_of(error: BaseException) -> str | None:
    """Return what this system lacks, if a test has failed for that."""
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        if package in TORCH:
            return f"needs PyTorch: {package}"
        if package in POSIX and _in_tests(error):
            return f"needs POSIX: {package}"
    if isinstance(error, AttributeError) and (found := _PART.search(str(error))) and _in_tests(error):
        return f"needs POSIX: {found[1]}.{found[2]}"
    return None


def _in_tests(error: BaseException) -> bool:
    """Whether a line of the tests has raised it."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and last.tb_frame.f_code.co_filename.startswith(_TESTS)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
    report = yield
    if report.outcome == "failed" and call.excinfo and (reason := reason_of(call.excinfo.value)):
        report.outcome, report.longrepr = "skipped", (str(item.path), 0, reason)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[Any]:
    report = yield
    call = getattr(report, "call", None)
    if report.outcome == "failed" and call and call.excinfo:
        error = call.excinfo.value
        if reason := reason_of(error.__cause__ or error):
            report.outcome, report.longrepr = "skipped", (str(collector.path), 0, reason)
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
        left_out[report.longrepr[2]] += 1


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
        left_out[f"{report.longrepr[2]} (all of {report.nodeid})"] += 1


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for reason, count in left_out.most_common():
        terminalreporter.write_line(f"{count:5} {reason}")
