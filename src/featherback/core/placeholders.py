"""Recognise what a download may leave in place of a file: a pointer of Git LFS, or a web page."""

from __future__ import annotations

HEAD = 256
"""The first bytes of a file that must be looked at."""
_POINTER = b"version https://git-lfs.github.com/"
_PAGES = (b"<!doctype html", b"<html")


def pointer(head: bytes) -> str | None:
    """Return what is wrong with a file that begins so, and what to do, if it is a pointer of Git LFS."""
    if not head.startswith(_POINTER):
        return None
    return "is a pointer of Git LFS, not the file itself. Fetch the file with `git lfs pull`."


def is_page(head: bytes) -> bool:
    """Whether a file that begins so is a web page."""
    return head[:HEAD].lstrip().lower().startswith(_PAGES)


def placeholder(head: bytes) -> str | None:
    """As `pointer`, also if it is a web page, for files whose format is not text."""
    if not is_page(head):
        return pointer(head)
    return "is a web page, not the file itself. Download the file: its link contains /resolve/ or /raw/."
