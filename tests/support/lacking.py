"""A plugin of pytest for systems that lack PyTorch or POSIX: `python -m pytest -p tests.support.lacking`.

A test that needs what this system lacks is skipped with the reason, which the test itself shows: it imports a package
that is not here, asks Python for a part of POSIX, or for what POSIX alone does (a mode, a link, a file of /proc). A
test fails if the product does so. Under wine, tests of memory accounting are skipped too. The summary counts the
reasons.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

TORCH = {"torch", "transformers", "peft"}
POSIX = {"fcntl", "resource", "pty", "termios", "pwd", "grp", "syslog"}
SHELLS = {"bash", "zsh", "sh", "git", "true", "false", "cat", "sleep", "strace", "prlimit", "nice"}
WINE = bool(os.environ.get("WINEPREFIX"))
ACCOUNTING = "needs memory accounting: wine's is not that of Windows"
_PART = re.compile(r"module '(os|signal|socket|select|time|mmap|pwd)' has no attribute '(\w+)'")
_PLACE = re.compile(r"(?i)^(z:)?[\\/]+(proc|dev|sys|usr|etc|tmp)([\\/]|$)")
_BUDGET = re.compile(r"these options need at least|does not fit in \d+MB|[Bb]udget of \d+ ?MB")
_TESTS = str(Path(__file__).parents[1])
_LIBRARY = str(Path(os.__file__).parent)
left_out: Counter[str] = Counter()


def pytest_configure() -> None:
    if WINE:
        del os.getppid  # wine 8 ends a program that calls it
    os.symlink = _checked(os.symlink, "needs symbolic links", lambda _, at, *__, **___: os.path.lexists(at))
    os.chmod = _checked(os.chmod, "needs modes of files", _has_mode)
    os.umask = _refused(os.umask, "needs modes of files")
    stat.S_IMODE = _refused(stat.S_IMODE, "needs modes of files")
    os.fsdecode = _checked(os.fsdecode, "needs names that are not UTF-8", lambda *_: True)
    sys.addaudithook(_refuse_places)


def _asked_by_test(depth: int = 2) -> bool:
    """Whether a line of the tests calls, itself or through Python's own library."""
    frame = sys._getframe(depth)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_LIBRARY, "<frozen", __file__)):
        frame = frame.f_back
    return frame.f_code.co_filename.startswith(_TESTS)


def _checked(function: Callable[..., Any], reason: str, has_worked: Callable[..., bool]) -> Callable[..., Any]:
    """Return the function. If it does not work, the test that calls it is skipped."""

    @wraps(function)
    def called(*arguments: Any, **options: Any) -> Any:
        by_test = _asked_by_test()
        try:
            result = function(*arguments, **options)
        except (OSError, UnicodeError) as error:
            if by_test and (isinstance(error, UnicodeError) or getattr(error, "winerror", 0) not in (2, 3, 183)):
                pytest.skip(reason)
            raise
        if by_test and not has_worked(*arguments, **options):
            pytest.skip(reason)
        return result

    return called


def _refused(function: Callable[..., Any], reason: str) -> Callable[..., Any]:
    """Return the function. A test that calls it is skipped."""

    @wraps(function)
    def called(*arguments: Any) -> Any:
        if _asked_by_test():
            pytest.skip(reason)
        return function(*arguments)

    return called


def _has_mode(path: Any, mode: int, **_: Any) -> bool:
    return os.stat(path).st_mode & 0o777 == mode & 0o777


def _refuse_places(event: str, arguments: tuple[Any, ...]) -> None:
    """Skip a test that opens a file of another system, or starts a program of it."""
    if event == "open" and isinstance(arguments[0], str) and (found := _PLACE.match(arguments[0])):
        if found[2] in ("proc", "dev", "sys") and _asked_by_test(2):
            pytest.skip(f"needs POSIX: /{found[2]}")
    elif event == "subprocess.Popen" and _asked_by_test(2):
        words = arguments[1] if isinstance(arguments[1], str) else " ".join(map(str, arguments[1]))
        program = Path(words.strip('"').split('"')[0].split(" ")[0]).name
        if program in SHELLS:
            pytest.skip(f"needs a shell or a program of POSIX: {program}")


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
    if WINE and _BUDGET.search(str(error)):
        return ACCOUNTING
    return None


def _in_tests(error: BaseException) -> bool:
    """Whether a line of the tests has raised it."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and last.tb_frame.f_code.co_filename.startswith(_TESTS)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if WINE and item.get_closest_marker("memory_figures"):
        pytest.skip(ACCOUNTING)


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
        left_out[report.longrepr[2].removeprefix("Skipped: ")] += 1


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
        left_out[f"{report.longrepr[2]} (all of {report.nodeid})"] += 1


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for reason, count in left_out.most_common():
        terminalreporter.write_line(f"{count:5} {reason}")
