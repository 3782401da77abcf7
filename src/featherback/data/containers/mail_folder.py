"""A folder of mails, one .eml file each, with its subfolders. Together they are read as one mailbox."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from featherback.core.private import check_link_inside
from featherback.data.containers.mail import Mail, messages_of
from featherback.data.inputs import Input

_SUFFIX = ".eml"


class MailFolder(Mail):
    title = "folder of mail"
    suffixes = ()

    def recognises_content(self, begin: bytes) -> bool:
        return False

    def messages(self, data: Input) -> Iterator[tuple[str, bytes, bool]]:
        for path in _files(data.path):
            check_link_inside(path, data.path)
            yield from messages_of(Input(path, data.watch, None, data.room))

    def size(self, data: Input) -> int:
        return sum(Input(path).size for path in _files(data.path))


CONTAINER = MailFolder()


def is_mail_folder(folder: Path) -> bool:
    """Whether all files in a folder and its subfolders are mails. Hidden ones do not count."""
    found = False
    for path in _files(folder):
        if path.suffix.lower() != _SUFFIX:
            return False
        found = True
    return found


def _files(folder: Path) -> Iterator[Path]:
    for at, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(at, name) for name in sorted(names) if not name.startswith("."))
