"""Who may use a file or a folder: access lists that name its owner, the system and administrators, and nobody else."""

from __future__ import annotations

import ctypes
import re
import sys
from ctypes import wintypes
from functools import cache

from featherback.core.system.windows import api

assert sys.platform == "win32"


OWNER_ONLY = "D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;FA;;;{owner})"
"""The access list of a private folder. What is created in it inherits the list."""
_ENTRY = re.compile(r"\((\w+);[^;()]*;[^;()]*;[^;()]*;[^;()]*;([^;()]+)\)")
_DACL, _PROTECTED = 4, 0x80000000

_POINTER, _TEXT, _NUMBER, _BOOL = ctypes.c_void_p, wintypes.LPCWSTR, wintypes.DWORD, wintypes.BOOL
_advapi = api.advapi32
for name, arguments in {
    "ConvertStringSecurityDescriptorToSecurityDescriptorW": (_TEXT, _NUMBER, _POINTER, _POINTER),
    "ConvertSecurityDescriptorToStringSecurityDescriptorW": (_POINTER, _NUMBER, _NUMBER, _POINTER, _POINTER),
    "ConvertSidToStringSidW": (_POINTER, _POINTER),
    "GetFileSecurityW": (_TEXT, _NUMBER, _POINTER, _NUMBER, _POINTER),
    "SetFileSecurityW": (_TEXT, _NUMBER, _POINTER),
    "OpenProcessToken": (api.HANDLE, _NUMBER, _POINTER),
    "GetTokenInformation": (api.HANDLE, ctypes.c_int, _POINTER, _NUMBER, _POINTER),
}.items():
    api.declare(_advapi, name, _BOOL, *arguments)


class Attributes(ctypes.Structure):
    """SECURITY_ATTRIBUTES: for what is created."""

    _fields_ = (("size", wintypes.DWORD), ("descriptor", ctypes.c_void_p), ("inherits", wintypes.BOOL))


@cache
def owner() -> str:
    """Return the security identifier of this user."""
    token, needed = api.HANDLE(), wintypes.DWORD()
    api.check(_advapi.OpenProcessToken(api.kernel32.GetCurrentProcess(), 8, ctypes.byref(token)))  # TOKEN_QUERY
    try:
        _advapi.GetTokenInformation(token, 1, None, 0, ctypes.byref(needed))  # TokenUser
        about = ctypes.create_string_buffer(needed.value)
        api.check(_advapi.GetTokenInformation(token, 1, about, needed, ctypes.byref(needed)))
    finally:
        api.close(token.value or 0)
    text = wintypes.LPWSTR()
    api.check(_advapi.ConvertSidToStringSidW(ctypes.c_void_p.from_buffer(about), ctypes.byref(text)))
    try:
        return str(text.value)
    finally:
        api.kernel32.LocalFree(text)


@cache
def _owner_only() -> ctypes.c_void_p:
    found = ctypes.c_void_p()
    text = OWNER_ONLY.format(owner=owner())
    api.check(_advapi.ConvertStringSecurityDescriptorToSecurityDescriptorW(text, 1, ctypes.byref(found), None))
    return found


def private() -> Attributes:
    """Return the attributes for a new folder that only its owner can use."""
    return Attributes(ctypes.sizeof(Attributes), _owner_only(), False)


def make_private(path: str) -> None:
    """Let only the owner use a file or a folder. Raises OSError."""
    api.check(_advapi.SetFileSecurityW(api.long(path), _DACL | _PROTECTED, _owner_only()), path)


def is_private(path: str) -> bool:
    """Whether only the owner, the system and administrators may use a file or a folder. Raises OSError."""
    needed = wintypes.DWORD()
    _advapi.GetFileSecurityW(api.long(path), _DACL, None, 0, ctypes.byref(needed))
    about = ctypes.create_string_buffer(max(1, needed.value))
    api.check(_advapi.GetFileSecurityW(api.long(path), _DACL, about, len(about), ctypes.byref(needed)), path)
    text = wintypes.LPWSTR()
    convert = _advapi.ConvertSecurityDescriptorToStringSecurityDescriptorW
    api.check(convert(about, 1, _DACL, ctypes.byref(text), None), path)
    try:
        entries = _ENTRY.findall(str(text.value))
    finally:
        api.kernel32.LocalFree(text)
    allowed = {who for kind, who in entries if kind.startswith(("A", "X"))}
    return bool(entries) and allowed <= {"SY", "BA", "OW", owner()}
