"""Windows' own functions, with the types of their arguments. Calls release Python's lock."""

from __future__ import annotations

import ctypes
import errno
import msvcrt
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import wintypes
from typing import Any

assert sys.platform == "win32"


kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
advapi32 = ctypes.WinDLL("advapi32", use_last_error=True)

HANDLE = wintypes.HANDLE
INVALID = HANDLE(-1).value
READ, WRITE, APPEND, DELETE, READ_CONTROL, WRITE_DAC = 0x80000000, 0x40000000, 0x4, 0x10000, 0x20000, 0x40000
SHARE_READ, SHARE_WRITE, SHARE_DELETE = 1, 2, 4
SHARE = SHARE_READ | SHARE_WRITE | SHARE_DELETE
CREATE_NEW, OPEN_EXISTING, OPEN_ALWAYS = 1, 3, 4
NOT_LINKS, FOLDERS = 0x00200000, 0x02000000  # FILE_FLAG_OPEN_REPARSE_POINT, FILE_FLAG_BACKUP_SEMANTICS
UNBUFFERED, RANDOM, DELETE_ON_CLOSE, HIDDEN = 0x20000000, 0x10000000, 0x04000000, 0x2
SHARING_VIOLATION, NOT_FOUND, NO_PATH, END_OF_FILE, BROKEN_PIPE = 32, 2, 3, 38, 109


class Overlapped(ctypes.Structure):
    """OVERLAPPED: the position of a read or a write."""

    _fields_ = (
        ("internal", ctypes.c_void_p),
        ("internal_high", ctypes.c_void_p),
        ("offset", wintypes.DWORD),
        ("offset_high", wintypes.DWORD),
        ("event", HANDLE),
    )


def declare(library: ctypes.WinDLL, name: str, result: object, *arguments: object) -> None:
    """Set the types of a function."""
    function = getattr(library, name)
    function.restype, function.argtypes = result, arguments


_POINTER, _TEXT, _NUMBER, _BOOL = ctypes.c_void_p, wintypes.LPCWSTR, wintypes.DWORD, wintypes.BOOL
declare(kernel32, "CreateFileW", HANDLE, _TEXT, _NUMBER, _NUMBER, _POINTER, _NUMBER, _NUMBER, HANDLE)
declare(kernel32, "CreateDirectoryW", _BOOL, _TEXT, _POINTER)
declare(kernel32, "CloseHandle", _BOOL, HANDLE)
declare(kernel32, "ReadFile", _BOOL, HANDLE, _POINTER, _NUMBER, _POINTER, _POINTER)
declare(kernel32, "WriteFile", _BOOL, HANDLE, _POINTER, _NUMBER, _POINTER, _POINTER)
declare(kernel32, "GetFinalPathNameByHandleW", _NUMBER, HANDLE, wintypes.LPWSTR, _NUMBER, _NUMBER)
declare(kernel32, "MoveFileExW", _BOOL, _TEXT, _TEXT, _NUMBER)
declare(kernel32, "OpenProcess", HANDLE, _NUMBER, _BOOL, _NUMBER)
declare(kernel32, "GetCurrentProcess", HANDLE)
declare(kernel32, "DuplicateHandle", _BOOL, HANDLE, HANDLE, HANDLE, _POINTER, _NUMBER, _BOOL, _NUMBER)
declare(kernel32, "GetExitCodeProcess", _BOOL, HANDLE, _POINTER)
declare(kernel32, "GetDiskFreeSpaceExW", _BOOL, _TEXT, _POINTER, _POINTER, _POINTER)
declare(kernel32, "GlobalMemoryStatusEx", _BOOL, _POINTER)
declare(kernel32, "GetSystemPowerStatus", _BOOL, _POINTER)
declare(kernel32, "SetPriorityClass", _BOOL, HANDLE, _NUMBER)
declare(kernel32, "GetPriorityClass", _NUMBER, HANDLE)
declare(kernel32, "GetDriveTypeW", wintypes.UINT, _TEXT)
declare(kernel32, "K32GetProcessMemoryInfo", _BOOL, HANDLE, _POINTER, _NUMBER)
declare(kernel32, "CreateJobObjectW", HANDLE, _POINTER, _TEXT)
declare(kernel32, "AssignProcessToJobObject", _BOOL, HANDLE, HANDLE)
declare(kernel32, "SetInformationJobObject", _BOOL, HANDLE, ctypes.c_int, _POINTER, _NUMBER)
declare(kernel32, "GetProcessTimes", _BOOL, HANDLE, _POINTER, _POINTER, _POINTER, _POINTER)
declare(kernel32, "VirtualUnlock", _BOOL, _POINTER, ctypes.c_size_t)
declare(kernel32, "SetHandleInformation", _BOOL, HANDLE, _NUMBER, _NUMBER)
declare(kernel32, "LocalFree", HANDLE, HANDLE)


def failure(name: object = None, code: int | None = None) -> OSError:
    """Return the error of the last call, or of a code, in the words that other systems have for it."""
    found = ctypes.get_last_error() if code is None else code
    error = OSError(None, ctypes.FormatError(found), None if name is None else str(name), found)
    if error.errno != errno.EINVAL:  # which stands for all that others do not know
        error.strerror = os.strerror(error.errno or 0)
    return error


def check(worked: int, name: object = None) -> None:
    """Raise OSError if a call has failed. `name`: the file that it was about."""
    if not worked:
        raise failure(name)


def open_file(
    path: str, access: int, share: int, creation: int, flags: int, security: ctypes.Structure | None = None
) -> int:
    """Return a handle. Raises OSError."""
    about = None if security is None else ctypes.byref(security)
    handle = kernel32.CreateFileW(long(path), access, share, about, creation, flags, None)
    if handle == INVALID or handle is None:
        raise failure(path)
    return int(handle)


def long(path: str) -> str:
    r"""Return a path that may have more than 260 characters: with \\?\ before it."""
    if len(path) < 240 or path.startswith("\\\\?\\"):
        return path
    whole = os.path.abspath(path)
    return "\\\\?\\UNC" + whole[1:] if whole.startswith("\\\\") else "\\\\?\\" + whole


def descriptor(handle: int, flags: int) -> int:
    """Return a descriptor for a handle, which belongs to it from now on."""
    return msvcrt.open_osfhandle(handle, flags | os.O_BINARY | os.O_NOINHERIT)


def close(handle: int) -> None:
    """Close a handle."""
    kernel32.CloseHandle(handle)


def python(environment: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return the program of a fresh Python like this one, and its environment.

    It is not the program of a virtual environment, which would start another process and wait for it.
    """
    program: str = sys._base_executable  # type: ignore[attr-defined]
    launcher = {} if program == sys.executable else {"__PYVENV_LAUNCHER__": sys.executable}
    return program, {**environment, **launcher}


@contextmanager
def inherited(descriptors: Sequence[int]) -> Iterator[tuple[Any, list[int]]]:
    """Within the context, these descriptors' handles can be inherited: yields (STARTUPINFO, handles)."""
    handles = [msvcrt.get_osfhandle(file) for file in descriptors]
    for handle in handles:
        os.set_handle_inheritable(handle, True)
    try:
        yield subprocess.STARTUPINFO(lpAttributeList={"handle_list": list(handles)}), handles
    finally:
        for handle in handles:
            os.set_handle_inheritable(handle, False)


class MemoryCounters(ctypes.Structure):
    """PROCESS_MEMORY_COUNTERS_EX."""

    _fields_ = (
        ("size", wintypes.DWORD),
        ("faults", wintypes.DWORD),
        ("peak_working_set", ctypes.c_size_t),
        ("working_set", ctypes.c_size_t),
        ("quota_peak_paged", ctypes.c_size_t),
        ("quota_paged", ctypes.c_size_t),
        ("quota_peak_nonpaged", ctypes.c_size_t),
        ("quota_nonpaged", ctypes.c_size_t),
        ("pagefile", ctypes.c_size_t),
        ("peak_pagefile", ctypes.c_size_t),
        ("private", ctypes.c_size_t),
    )


def memory_of(process: int | None = None) -> MemoryCounters:
    """Return the memory counters of a process, by its handle; by default this one."""
    found = MemoryCounters()
    found.size = ctypes.sizeof(found)
    handle = kernel32.GetCurrentProcess() if process is None else process
    kernel32.K32GetProcessMemoryInfo(handle, ctypes.byref(found), found.size)
    return found
