"""File formats of data, one module each. A container turns bytes into records or texts with their places."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from featherback.core.placeholders import placeholder, pointer
from featherback.core.registry import Registry
from featherback.core.terminal import quoted
from featherback.data.containers.base import Container
from featherback.data.containers.saved_dataset import is_saved
from featherback.data.inputs import Input
from featherback.data.layers import COMPRESSED, plain_name
from featherback.errors import FeatherbackError

_SHARED = (
    *("base", "decoded", "dialect", "json_lists", "json_scanner", "json_text", "letter", "lines", "packed"),
    *("separated", "table", "talk", "tree"),
)
CONTAINERS: Registry[Container] = Registry(__name__, "CONTAINER", "format of data", shared=_SHARED)

_CONVERTERS = {
    ".rtf": "pandoc --wrap=none -t plain -o {0}.txt {1}",
    ".pdf": "pdftotext {1} {0}.txt",
    ".doc": "soffice --headless --convert-to txt {1}",
}
"""Commands that turn documents into text. {0} stands for the file's path without its suffix, {1} for its path."""
_UNPACKERS = {".tar": "tar xf {1}", ".tgz": "tar xf {1}", ".7z": "7z x {1}", ".rar": "unrar x {1}"}
"""Commands that unpack archives, with the same places."""
_UNREAD = _CONVERTERS | _UNPACKERS


def container_of(data: Input) -> Container:
    """Return the format of `data`, from its name or else its first bytes.

    Raises FeatherbackError if it is missing, empty, unreadable, or of unknown format.
    """
    head = b"" if data.is_folder else data.head()
    found = _seeming(data, head)
    if said := (pointer if found in (CONTAINERS["text"], CONTAINERS["html"]) else placeholder)(head):
        raise FeatherbackError(f"{data.path} {said}")
    if found:
        return found
    if data.is_stdin:
        return CONTAINERS["text"]
    if command := _filled_in(_CONVERTERS, data):
        raise FeatherbackError(f"{data.path} is a document. Convert it to text, and read that: {command}.")
    if command := _filled_in(_UNPACKERS, data):
        raise FeatherbackError(f"{data.path} is an archive. Unpack it, and pass the files in it: {command}.")
    known = [CONTAINERS[name] for name in CONTAINERS.names]
    kinds = ", ".join(f"{kind.suffixes[0]} ({kind.title})" for kind in known if kind.suffixes)
    raise FeatherbackError(f"The data file {data.path} has an unknown format. Save it as one of: {kinds}.")


def _filled_in(commands: Mapping[str, str], data: Input) -> str:
    """Return the command for a file of this suffix; "" if there is none."""
    words = (word.format(data.path.with_suffix(""), data.path) for word in commands.get(data.suffix, "").split())
    return quoted(*words)


def suffixes() -> set[str]:
    """Return the suffixes of data files in lower case, with the dot."""
    return {suffix for name in CONTAINERS.names for suffix in CONTAINERS[name].suffixes}


def may_be_data(name: str) -> bool:
    """Whether a file name has the suffix of a data file, of a compressed file, or one to convert or unpack."""
    return Path(name).suffix.lower() in {*suffixes(), *COMPRESSED, *_UNREAD}


def has_data_suffix(name: str) -> bool:
    """Whether a file name has the suffix of a data file other than .json."""
    return Path(plain_name(name)).suffix.lower() in suffixes() - {".json"}


def looks_like_data(path: Path, head: bytes) -> bool:
    """Whether `path` looks like data: a file of a known format, a document, or a folder that contains data files.

    In folders .json files do not count, because many kinds of folders have them.
    """
    data = Input(path)
    if data.is_folder:
        return is_saved(path) or any(has_data_suffix(file.name) for file in path.rglob("*"))
    try:
        return data.suffix in _UNREAD or _seeming(data, data.head() if head else head) is not None
    except FeatherbackError:  # a compressed file that cannot be unpacked, for example
        return has_data_suffix(path.name) or plain_name(path.name) != path.name


def _seeming(data: Input, head: bytes) -> Container | None:
    """Return the format of `data` from its name or else its first bytes; None if it is unknown."""
    if data.is_folder:
        from featherback.data.containers.mail_folder import is_mail_folder  # not in the training process

        mail = "mail_folder" if is_mail_folder(data.path) else "folder"
        return CONTAINERS["saved_dataset" if is_saved(data.path) else mail]
    known = [CONTAINERS[name] for name in CONTAINERS.names]
    if not head and not data.path.exists():
        return None
    begin, suffix = head.removeprefix(b"\xef\xbb\xbf").lstrip(), data.suffix
    if certain := next((kind for kind in known if kind.recognises_content(begin)), None):
        return certain
    if suffix in _UNREAD:
        return None
    named = [kind for kind in known if suffix in kind.suffixes and kind.fits(begin)]
    return next(iter(named or [kind for kind in known if kind.recognises_start(begin)]), None)
